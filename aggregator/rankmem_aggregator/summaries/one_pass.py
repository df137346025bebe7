"""One pass of the summaries: the next range of some ranks' logs, from stored rows into the summary tables.

Stage: summaries, in the writer's thread, inside one transaction that the caller owns. In: which ranks, from
where to where (rows of ``sql/summaries/due.sql``), and the blocks alive where the ranges begin. Out: rows
of ``rankmem_protos.summary_tables``, and the blocks alive where they end. How a log is cut into ranges
changes the number of rows, never what they add up to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store import schema
from rankmem_aggregator.summaries.rows import NEVER, Blocks, blocks_of, group_rows, ints
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.summary_tables import GROUP_BUCKET, GROUP_SUMMARIES, GROUP_TOTAL, SUMMARY_PROGRESS
from rankmem_protos.tables import Table

NOTHING: Final = -NUMBER_MAX
"""seq of a rank that is not in the summaries: below the ids of blocks older than its recording."""

Rank = tuple[str, int, int]
"""session_id, attempt, rank."""

DUE: Final = pa.schema(
    [
        pa.field("number", pa.int32()),
        pa.field("session_id", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("rank", pa.int32()),
        pa.field("seq_from", pa.int64()),
        pa.field("seq_upto", pa.int64()),
        pa.field("final", pa.bool_()),
    ]
)
"""Input of a pass: a row for each rank, numbered from 0."""


class RankBatch(Protocol):
    """Rows of a range of one rank's log, about to be stored."""

    @property
    def rank_key(self) -> Rank:
        """The rank of the rows, as they are stored."""

    @property
    def rows(self) -> Mapping[str, pa.Table]:
        """By table name."""

    @property
    def num_positions(self) -> int:
        """Of the log."""

    @property
    def final(self) -> bool:
        """Whether no more rows follow."""


def ranks_of(rows: pa.Table) -> list[Rank]:
    """The rank of each row."""
    return list(zip(*(rows[name].to_pylist() for name in ("session_id", "attempt", "rank")), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass over the connection of the writer.

    Args:
        connection: in a transaction.
        due: schema :data:`DUE`.
        alive: by rank, the blocks alive at seq_from, where this process has done its pass before.
    """

    connection: duckdb.DuckDBPyConnection
    due: pa.Table
    alive: Mapping[Rank, pa.Table]

    def run(self) -> dict[Rank, pa.Table]:
        """Writes the rows and the progress; returns the blocks alive at seq_upto, by rank."""
        self._delete_invalidated()
        self._set_due(self.due)
        blocks = self._blocks()
        found = group_rows(self.due, blocks, self._rows("turn"))
        for rows in found.buckets:
            self._store(GROUP_BUCKET, rows)
        self._store(GROUP_TOTAL, found.totals)
        progress = self.due.select(["session_id", "attempt", "rank", "seq_upto", "final"])
        self._store(SUMMARY_PROGRESS, progress.rename_columns(SUMMARY_PROGRESS.column_names()))
        self.connection.execute("DROP TABLE summary_due")
        return _alive_after(self.due, blocks, found.categories)

    def _delete_invalidated(self) -> None:
        """Deletes earlier rows of the ranks that start again."""
        fresh = self.due.filter(pc.equal(self.due["seq_from"], NOTHING))
        if fresh.num_rows:
            self._set_due(fresh)
            for table in GROUP_SUMMARIES:
                name = table.name
                columns = ("session_id", "attempt", "rank")
                same = " AND ".join(f"{schema.quoted(name)}.{column} = due.{column}" for column in columns)
                self.connection.execute(
                    f"DELETE FROM {schema.quoted(name)} USING summary_due AS due WHERE {same}"
                )

    def _set_due(self, due: pa.Table) -> None:
        """Fills the temporary table that the statements of the pass read."""
        self.connection.register(schema.INCOMING, due)
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE summary_due AS FROM {schema.INCOMING}")
        self.connection.unregister(schema.INCOMING)

    def _blocks(self) -> Blocks:
        seq_from, seq_upto = ints(self.due, "seq_from"), ints(self.due, "seq_upto")
        parts = [self._rows("made")]
        unknown = np.ones(self.due.num_rows, np.bool_)
        for number, rank in enumerate(ranks_of(self.due)):
            if rank in self.alive or seq_from[number] == NOTHING:
                unknown[number] = False
            if rank in self.alive:
                rows = self.alive[rank]
                parts.append(
                    rows.add_column(0, "number", pa.repeat(pa.scalar(number, pa.int32()), len(rows)))
                )
        if unknown.any():
            self._set_due(self.due.filter(pa.array(unknown)))
            parts.append(self._rows("carried"))
            self._set_due(self.due)
        rows = pa.concat_tables([part.cast(parts[0].schema) for part in parts])
        return blocks_of(rows, self._rows("ending"), seq_from, seq_upto)

    def _rows(self, query: str) -> pa.Table:
        return self.connection.sql(statement_text("summaries", query)).to_arrow_table()

    def _store(self, table: Table, rows: pa.Table) -> None:
        if rows.num_rows:
            self.connection.register(schema.INCOMING, rows)
            self.connection.execute(schema.store_statement(table))
            self.connection.unregister(schema.INCOMING)


def _alive_after(due: pa.Table, blocks: Blocks, categories: pa.Array) -> dict[Rank, pa.Table]:
    """The blocks that are still alive, by rank, with their categories by then."""
    at = np.flatnonzero(blocks.freed_seq == NEVER)
    rows = blocks.rows.take(pa.array(at))
    place = rows.schema.get_field_index("category")
    rows = rows.set_column(place, "category", categories.take(pa.array(at))).drop_columns(["number"])
    begins = np.searchsorted(blocks.number[at], np.arange(due.num_rows + 1))
    return {
        rank: rows.slice(begin, end - begin).combine_chunks()
        for rank, begin, end in zip(ranks_of(due), begins[:-1], begins[1:], strict=True)
    }
