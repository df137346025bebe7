"""Reads the database's own tables, table by table and rank by rank, for exports that copy them.

Stage: export. In: the selection; out: Arrow batches with the declared columns, in order, a bounded number
of rows at a time. Long tables are read page by page, so that an aggregator's limits of time and rows apply to
each page. The ranks are those known when the export began.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from rankmem_aggregator.exports.contract import Selection
from rankmem_aggregator.exports.table_statements import (
    POSITIONS,
    bounds_statement,
    is_of_rank,
    rows_statement,
)
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.store.schema import INGEST_PROGRESS, SPOOL_START
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import TABLES, Table

PAGE_ROWS: Final = 500_000
"""Rows of a statement: a second of an aggregator's time, some 60 MiB where they are all held."""


class RankPlace(NamedTuple):
    """A rank of an attempt, with its host."""

    attempt: int
    rank: int
    host_name: str
    offset_ns: int
    """Add to its host's times to get the common clock."""
    columns: Mapping[str, Collection[str]]
    """The columns of each table in the database: a file of an older version lacks some."""


def rank_places(selection: Selection) -> list[RankPlace]:
    """The selected ranks, by rank and attempt.

    Raises:
        RankmemError: NOT_FOUND where the session has none.
    """
    rows = selection.rows("ranks")
    columns: dict[str, set[str]] = {}
    for text in selection.rows("columns")[0]["names"]:
        table, _, column = text.partition(".")
        columns.setdefault(table, set()).add(column)
    places = [
        RankPlace(**row, columns=columns)
        for row in rows
        if selection.ranks is None or row["rank"] in selection.ranks
    ]
    if not places:
        raise RankmemError(
            Code.NOT_FOUND, f"session {selection.session_id} has no ranks", "see rankmem ranks"
        )
    return places


def rows_of_rank(selection: Selection, table: Table, place: RankPlace) -> Iterator[pa.RecordBatch]:
    """The rank's rows of a table in the selected range; at least one batch, maybe without rows."""
    whose: dict[str, Value] = {"attempt": place.attempt, "rank": place.rank}
    values = whose | {
        "from_ns": None if selection.from_ns is None else selection.from_ns - place.offset_ns,
        "until_ns": None if selection.until_ns is None else selection.until_ns - place.offset_ns,
    }
    present = place.columns.get(table.name)
    if present is None:
        yield pa.RecordBatch.from_pylist([], schema=table.arrow_schema())
        return
    statement = rows_statement(table, present)
    if table.name not in POSITIONS:
        yield from selection.stream_of(statement, **values)
        return
    (bounds,) = pa.Table.from_batches(selection.stream_of(bounds_statement(table), **whose)).to_pylist()
    for first, last in pages(bounds["least"], bounds["most"], bounds["num_rows"]):
        yield from selection.stream_of(statement, **values, first=first, last=last)


def pages(least: int | None, most: int | None, num_rows: int) -> Iterator[tuple[int, int]]:
    """First and last position of each page: of PAGE_ROWS if the rows are evenly spread."""
    if least is None or most is None:
        yield 0, -1
        return
    count = max(1, -(-num_rows // PAGE_ROWS))
    edges = [least + (most + 1 - least) * number // count for number in range(count + 1)]
    for first, after in itertools.pairwise(edges):
        if after > first:
            yield first, after - 1


def rows_of_session(selection: Selection, table: Table) -> Iterator[pa.RecordBatch]:
    """The rows of a table without ranks, as far as the selected ranks need them."""
    return selection.stream(table.name)


def tables_of_ranks(selection: Selection) -> list[Table]:
    """Tables whose rows belong to ranks, in declared order; of whole sessions also what is known of them.

    The progress of a summary is read before its rows, which may be more meanwhile.
    """
    has_range = selection.from_ns is not None or selection.until_ns is not None
    of_whole = () if has_range else (*SUMMARY_TABLES.values(), INGEST_PROGRESS, SPOOL_START)
    return [table for table in (*TABLES.values(), *of_whole) if is_of_rank(table)]


def tables_of_sessions() -> list[Table]:
    """The others."""
    return [table for table in TABLES.values() if not is_of_rank(table)]
