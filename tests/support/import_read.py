"""Imports recordings into a database of a test, and asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rankmem_cli.args.options import Target
from rankmem_cli.run.importing import Report, Request, import_recordings
from rankmem_imports.formats import Format
from rankmem_imports.recording import Closing, Identity


def imported(database: Path, *paths: Path, **options: Any) -> Report:
    """Imports the paths; ``options`` as :class:`Request` has them."""
    return import_recordings(Request(paths=[str(path) for path in paths], **options), Target(db=database))


def asked(database: Path, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    with duckdb.connect(database, read_only=True) as connection:
        return connection.execute(statement, parameters or None).fetchall()


def read_alone(reader: Format, path: Path) -> tuple[dict[str, list[dict[str, Any]]], Closing]:
    """All rows by table of the one recording that the reader finds in the file, and its closing."""
    [recording] = reader.open([path])
    found: dict[str, list[pa.RecordBatch]] = {}
    for part in recording.parts(Identity("S", 0, 0)):
        for table, rows in part.rows:
            found.setdefault(table, []).append(rows)
    tables = {table: pa.Table.from_batches(batches).to_pylist() for table, batches in found.items()}
    return tables, recording.closing()
