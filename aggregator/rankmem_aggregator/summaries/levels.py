"""When rows of memory_bucket are folded into cells of memory_level, and when those cells are invalidated.

Stage: ingest, in the writer's thread, where ``schedule`` asks for it. In: stored rows of memory_bucket; out:
``memory_level`` and ``level_progress``, one transaction for each fold. Rows of memory_bucket do not change,
so they are folded as soon as they are stored, up to the last whole range of 64 positions: none crosses its
end. If one comes late all the same, the transaction that stores it invalidates its rank's cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.store import Store
from rankmem_aggregator.summaries.cells import cells_of
from rankmem_aggregator.summaries.one_pass import DUE, NOTHING, Rank, RankBatch, ranks_of
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.summary_tables import LEVEL_PROGRESS, MEMORY_LEVEL
from rankmem_protos.tables import BUCKET_RECORDS, MEMORY_BUCKET, Table

FOLD_POSITIONS: Final = 1 << 22
"""Of all ranks in a fold: some 70,000 rows of memory_bucket, under a tenth of a second."""
RANK_POSITIONS: Final = 1 << 16
"""Of one rank in a fold: the ranks of a job go on together, as they lie in the file."""
LEAST_POSITIONS: Final = 16_384
"""Of a running rank: its cells at each width are cut where a fold ends."""


class Levels:
    """The levels of a store; all of it in the writer's thread."""

    def __init__(self, store: Store) -> None:
        self.num_folds = 0
        self.num_invalidated = 0
        """Times that the cells of a rank were."""
        self._store = store
        self._folded: dict[Rank, int] = {}
        self._tried: dict[Rank, int] = {}
        """Positions of a rank that were too few rows for cells; likewise in this process."""
        self._invalidated: set[Rank] = set()
        self._are_some_invalid = False
        self.read_progress()

    def read_progress(self) -> None:
        """Reads the stored progress: where a fold is in doubt, what is stored counts."""
        rows = self._store.read("SELECT session_id, attempt, rank, seq, final FROM level_progress")
        folded = zip(rows["seq"].to_pylist(), rows["final"].to_pylist(), strict=True)
        # Nothing comes after the end of a log: what does all the same is another log's.
        self._folded = {
            rank: NUMBER_MAX if final else seq
            for rank, (seq, final) in zip(ranks_of(rows), folded, strict=True)
        }
        self._are_some_invalid = NOTHING in self._folded.values()

    def invalidate(self, batches: Sequence[RankBatch], *, in_doubt: bool) -> pa.Table:
        """The rows of level_progress to be stored with these batches: of ranks that lose their cells."""
        for batch in batches:
            rows = batch.rows.get(MEMORY_BUCKET.name)
            if rows is None or not rows.num_rows:
                continue
            folded = NUMBER_MAX if in_doubt else self._folded.get(batch.rank_key, NOTHING)
            if folded > NOTHING and pc.min(rows["seq_first"]).as_py() <= folded:
                self._invalidated.add(batch.rank_key)
        return _progress([(rank, NOTHING, False) for rank in sorted(self._invalidated)])

    def commit(self) -> None:
        """The batches are stored, and with them what they invalidate."""
        for rank in self._invalidated:
            self._folded[rank] = NOTHING
            self._tried.pop(rank, None)
        self.num_invalidated += len(self._invalidated)
        self._are_some_invalid = self._are_some_invalid or bool(self._invalidated)
        self._invalidated.clear()

    def rollback(self) -> None:
        """The batches are not stored."""
        self._invalidated.clear()

    def forget(self, session_id: str) -> None:
        """The session is deleted, its cells with it."""
        for kept in (self._folded, self._tried):
            for rank in [rank for rank in kept if rank[0] == session_id]:
                del kept[rank]

    def advance(self) -> bool:
        """Folds the next ranks; False if nothing is due.

        Raises:
            duckdb.Error, pa.ArrowException, MemoryError: it is in doubt whether it is stored.
        """
        due = self._due()
        if not due.num_rows and not self._are_some_invalid:
            return False
        with self._store.transaction() as connection:
            if self._are_some_invalid:
                _delete_invalid(connection)
            pays = _fold(connection, due) if due.num_rows else []
        self._are_some_invalid = False
        self._folded = {rank: seq for rank, seq in self._folded.items() if seq > NOTHING}
        lengths = _columns(due, "seq_from", "seq_upto", "final")
        for rank, is_folded, (seq_from, seq_upto, final) in zip(ranks_of(due), pays, lengths, strict=True):
            if is_folded:
                self._folded[rank] = NUMBER_MAX if final else seq_upto
                self._tried.pop(rank, None)
            else:
                self._tried[rank] = seq_upto - max(seq_from, -1)
        self.num_folds += 1
        return bool(due.num_rows)

    def _due(self) -> pa.Table:
        """The ranks of the next fold, numbered, as rows of :data:`DUE`."""
        found = self._store.read(statement_text("summaries", "level_due"), {"least": LEAST_POSITIONS})
        taken: list[tuple[Rank, int, int, bool]] = []
        length = 0
        names = ("seq_from", "seq_upto", "final")
        for rank, (seq_from, seq_upto, final) in zip(ranks_of(found), _columns(found, *names), strict=True):
            begin = max(seq_from, -1)
            tried = self._tried.get(rank, 0)
            if seq_upto - begin < (2 * tried if not final else tried + 1):
                continue  # of rows so rare that cells save nothing: not before there are twice as many
            most = begin + max(RANK_POSITIONS, 2 * tried) // BUCKET_RECORDS * BUCKET_RECORDS
            taken.append((rank, seq_from, min(seq_upto, most), final and seq_upto <= most))
            length += taken[-1][2] - begin
            if length >= FOLD_POSITIONS:
                break
        rows = [
            {"number": number, "seq_from": seq_from, "seq_upto": seq_upto, "final": final}
            | dict(zip(("session_id", "attempt", "rank"), rank, strict=True))
            for number, (rank, seq_from, seq_upto, final) in enumerate(taken)
        ]
        return pa.Table.from_pylist(rows, schema=DUE)


def _delete_invalid(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(
        "DELETE FROM memory_level USING level_progress AS p WHERE memory_level.session_id = p.session_id "
        "AND memory_level.attempt = p.attempt AND memory_level.rank = p.rank AND p.seq = $nothing",
        {"nothing": NOTHING},
    )
    connection.execute("DELETE FROM level_progress WHERE seq = $nothing", {"nothing": NOTHING})


def _fold(connection: duckdb.DuckDBPyConnection, due: pa.Table) -> list[bool]:
    """Writes the cells and the progress; returns for each rank whether it was folded."""
    connection.register(schema.INCOMING, due)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE summary_due AS FROM {schema.INCOMING}")
    connection.unregister(schema.INCOMING)
    buckets = connection.sql(statement_text("summaries", "level_bucket")).to_arrow_table()
    connection.execute("DROP TABLE summary_due")
    rows, pays = cells_of(due, buckets)
    _store(connection, MEMORY_LEVEL, rows)
    folded = zip(ranks_of(due), pays, _columns(due, "seq_upto", "final"), strict=True)
    progress = [(rank, upto, final) for rank, is_folded, (upto, final) in folded if is_folded]
    _store(connection, LEVEL_PROGRESS, _progress(progress))
    return pays


def _store(connection: duckdb.DuckDBPyConnection, table: Table, rows: pa.Table) -> None:
    if rows.num_rows:
        connection.register(schema.INCOMING, rows)
        connection.execute(schema.store_statement(table))
        connection.unregister(schema.INCOMING)


def _progress(folded: Sequence[tuple[Rank, int, bool]]) -> pa.Table:
    names = LEVEL_PROGRESS.column_names()
    rows = [dict(zip(names, (*rank, seq, final), strict=True)) for rank, seq, final in folded]
    return pa.Table.from_pylist(rows, schema=LEVEL_PROGRESS.arrow_schema())


def _columns(rows: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The rows of these columns."""
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))
