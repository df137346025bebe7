"""``rankmem export parquet``: a session as a data set that any engine reads.

Stage: export. In: the selection; out: ``TABLE/by_session=…/host=…/by_rank=…/part-ATTEMPT.parquet``, and
``TABLE/by_session=…/part-0.parquet`` for tables without ranks. The files have all declared columns, also
session_id and rank, so each is complete; no folder may have a column's name, as pandas (pyarrow) refuses a
column to which folders give another type. Written by a DuckDB instance of our own from Arrow batches (the one
being read may be confined), in the order of the log, with delta encodings and zstd.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.names import part_of_name
from rankmem_aggregator.exports.table_rows import (
    rank_places,
    rows_of_rank,
    rows_of_session,
    tables_of_ranks,
    tables_of_sessions,
)
from rankmem_aggregator.sql import export_text

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "memory_limit": "1GB",
    "threads": 1,
    "preserve_insertion_order": True,
}
"""One thread keeps the order of the log and fills row groups."""


def write_parquet(selection: Selection, out: Path) -> ExportResult:
    """Writes the data set."""
    result = ExportResult()
    session = f"by_session={part_of_name(selection.session_id)}"
    with duckdb.connect(":memory:", config=_SETTINGS) as writer:
        for table in tables_of_sessions():
            path = out / table.name / session / "part-0.parquet"
            _write(writer, rows_of_session(selection, table), path, result, table.name)
        for place in rank_places(selection):
            selection.progress(f"writing rank {place.rank}")
            part = (
                f"host={part_of_name(place.host_name)}",
                f"by_rank={place.rank}",
                f"part-{place.attempt}.parquet",
            )
            for table in tables_of_ranks(selection):
                path = out.joinpath(table.name, session, *part)
                _write(writer, rows_of_rank(selection, table, place), path, result, table.name)
    return result


def _write(
    writer: duckdb.DuckDBPyConnection,
    batches: Iterator[pa.RecordBatch],
    path: Path,
    result: ExportResult,
    name: str,
) -> None:
    """Writes one file; none where there are no rows."""
    first = next(batches)
    if first.num_rows == 0 and (first := next(batches, first)).num_rows == 0:
        return

    def rows() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    path.parent.mkdir(parents=True, exist_ok=True)
    writer.register("incoming", pa.RecordBatchReader.from_batches(first.schema, rows()))
    try:
        ((count,),) = writer.execute(export_text("write_parquet"), {"path": str(path)}).fetchall()
    except duckdb.IOException as exc:  # it reads from memory: it is the file that cannot be written
        raise OSError(_reason(exc)) from exc
    finally:
        writer.unregister("incoming")
    result.add(name, count)


def _reason(exc: duckdb.IOException) -> str:
    """The error's reason without DuckDB's context."""
    return "No space left on device" if "No space left" in str(exc) else str(exc).partition("\n")[0]
