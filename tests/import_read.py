"""Imports recordings into a database of a test, and asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from rankmem_cli.importing import Report, Request, import_recordings
from rankmem_cli.options import Place


def imported(database: Path, *paths: Path, **options: Any) -> Report:
    """Imports the paths; ``options`` as :class:`Request` has them."""
    return import_recordings(Request(paths=[str(path) for path in paths], **options), Place(db=database))


def asked(database: Path, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    with duckdb.connect(database, read_only=True) as connection:
        return connection.execute(statement, parameters or None).fetchall()
