"""The parts of a file that its format is recognised by: its first bytes, and the tables of a database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_imports.files.compressed import unpacked_head
from rankmem_protos.errors import Code, RankmemError

SQLITE: Final = b"SQLite format 3\0"
PROBE_BYTES: Final = 64 << 10
"""Of a file's beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a file shows before it is read."""

    path: Path
    head: bytes
    """The first PROBE_BYTES, decompressed where the file is gzip."""
    sqlite_tables: frozenset[str] = frozenset()
    """Names of the tables where it is an SQLite database."""


def probe(path: Path) -> Probe:
    """The parts of a file that its format is recognised by.

    Raises:
        RankmemError: NOT_FOUND if it cannot be read; UNSUPPORTED for a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise RankmemError(Code.UNSUPPORTED, f"{path} is not a regular file", "save it as a file first")
    try:
        with path.open("rb") as file:
            head = file.read(PROBE_BYTES)
    except OSError as exc:
        raise RankmemError(Code.NOT_FOUND, f"cannot read {path}: {exc.strerror}") from exc
    head = unpacked_head(head, PROBE_BYTES)
    tables = _sqlite_tables(path) if head.startswith(SQLITE) else frozenset()
    return Probe(path=path, head=head, sqlite_tables=tables)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _sqlite_tables(path: Path) -> frozenset[str]:
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return frozenset()
    try:
        connection.text_factory = _text
        connection.execute("PRAGMA trusted_schema = OFF")
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):  # SQLite's own message may quote bytes of a damaged schema
        return frozenset()
    finally:
        connection.close()
    return frozenset(str(name) for (name,) in rows)
