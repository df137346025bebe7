"""``rankmem export arrow`` and ``csv``: the session's rows of every table, one file per table.

Stage: export. In: the selection; out: a folder of ``TABLE.arrow`` (Arrow IPC file, zstd, with the meaning
and unit of each column as its metadata) or ``TABLE.csv`` (with a header; NULL is an empty cell, formulas are
defused). Streams; holds one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, ipc

from rankmem_aggregator.csv_cells import guarded
from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.table_rows import rank_places, rows_of_rank, rows_of_session
from rankmem_aggregator.exports.table_statements import is_of_rank
from rankmem_protos.tables import TABLES, Table


def write_arrow(selection: Selection, out: Path) -> ExportResult:
    """Writes one Arrow IPC file per table."""
    return _write_files(selection, lambda table: _arrow_writer(table, out / f"{table.name}.arrow"))


def write_csv(selection: Selection, out: Path) -> ExportResult:
    """Writes one CSV file per table."""
    return _write_files(selection, lambda table: _csv_writer(table, out / f"{table.name}.csv"))


def _write_files(
    selection: Selection, writer_of: Callable[[Table], AbstractContextManager[Any]]
) -> ExportResult:
    result = ExportResult()
    for table in TABLES.values():
        selection.progress(f"writing {table.name}")
        with writer_of(table) as writer:
            for batch in _rows(selection, table):
                writer.write(pa.Table.from_batches([batch]).cast(_plain(table)))
                if batch.num_rows:
                    result.add(table.name, batch.num_rows)
    return result


def _rows(selection: Selection, table: Table) -> Iterator[pa.RecordBatch]:
    if not is_of_rank(table):
        yield from rows_of_session(selection, table)
        return
    for place in rank_places(selection):
        yield from rows_of_rank(selection, table, place)


def _plain(table: Table) -> pa.Schema:
    """The table's columns in types that every reader takes, each with its description."""
    return pa.schema(
        [
            pa.field(
                column.name,
                pa.string() if pa.types.is_dictionary(column.type) else column.type,
                metadata={"doc": column.doc, "unit": column.unit},
            )
            for column in table.columns
        ],
        metadata={"doc": table.doc},
    )


def _arrow_writer(table: Table, path: Path) -> AbstractContextManager[Any]:
    options = ipc.IpcWriteOptions(compression="zstd")
    return ipc.new_file(path, _plain(table), options=options)  # type: ignore[no-any-return]


class _csv_writer(AbstractContextManager["_csv_writer"]):
    """A CSV file that has its header also without rows."""

    def __init__(self, table: Table, path: Path) -> None:
        self._file = path.open("wb")
        self._file.write((",".join(table.column_names()) + "\n").encode())  # write_csv would quote each name
        options = csv.WriteOptions(include_header=False, quoting_style="needed")
        self._writer = csv.CSVWriter(self._file, _plain(table), write_options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write(guarded(rows))

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._file.close()
