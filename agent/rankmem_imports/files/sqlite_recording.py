"""A recording that is an SQLite database: opened read-only, queried by the statements of its format.

Stage: readers; the process of ``rankmem import``. In: a path; out: rows, as a stream. The file is someone
else's: nothing of its schema is trusted, nothing is written, no value is longer than VALUE_BYTES_MAX.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.plain_errors import plain

VALUE_BYTES_MAX: Final = 64 << 20
"""Of one text or blob: a larger one in a recording is a corrupt length."""
ROWS_FETCHED_MAX: Final = 10_000
"""Rows taken from SQLite at a time: a few MB."""

_FORMATS: Final = Path(__file__).parents[1]


class SqliteRecording:
    """An open database; a context manager that closes it.

    Raises:
        RankmemError: INVALID if it cannot be opened or is no database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro"
            with contextlib.ExitStack() as failed:
                # A reader that stops early leaves it to the garbage collector, which runs in any thread.
                self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
                failed.callback(self._connection.close)
                self._connection.text_factory = _text
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
                for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                    self._connection.execute(f"PRAGMA {pragma}")
                self.columns = self._columns()
                failed.pop_all()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may quote a damaged schema
            raise _broken(path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table (no view) with these columns."""
        return table in self.columns and set(columns) <= self.columns[table]

    def need(self, table: str, *columns: str) -> None:
        """Raises INVALID with the missing table or columns."""
        missing = sorted(set(columns) - self.columns.get(table, frozenset()))
        if table not in self.columns or missing:
            what = (
                f"columns {', '.join(missing)} of table {table}"
                if table in self.columns
                else f"table {table}"
            )
            raise RankmemError(
                Code.INVALID,
                f"{self.path} has no {what}",
                "export the recording again, with a newer exporter",
            )

    def rows(
        self, statement: str, parameters: Mapping[str, object] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """The rows that the statement of that name (``FORMAT/NAME``) gives, as a stream.

        Raises:
            RankmemError: INVALID where the database turns out to be broken.
        """
        try:
            cursor = self._connection.execute(statement_text(statement), parameters or {})
            while some := cursor.fetchmany(ROWS_FETCHED_MAX):
                yield from some
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise _broken(self.path, error) from error

    def row(self, statement: str, parameters: Mapping[str, object] | None = None) -> tuple[Any, ...] | None:
        """The first of them; None without any."""
        return next(self.rows(statement, parameters), None)

    def _columns(self) -> dict[str, frozenset[str]]:
        names = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        of_table = "SELECT name FROM pragma_table_info(:table)"
        return {
            name: frozenset(c for (c,) in self._connection.execute(of_table, {"table": name}))
            for (name,) in names
        }


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns a value of a wrong type, or beyond an integer, into an error of the recording."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, LookupError, AttributeError, struct.error) as error:
        raise RankmemError(
            Code.INVALID,
            f"{path} holds a value that its exporter does not write: {plain(error)}",
            "export the recording again",
        ) from error


def statement_text(name: str) -> str:
    """The SQL of ``NAME`` of a format: ``FORMAT/NAME`` is the file ``FORMAT/sql/NAME.sql``."""
    folder, _, file = name.partition("/")
    return (_FORMATS / folder / "sql" / f"{file}.sql").read_text(encoding="utf-8")


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _broken(path: Path, error: Exception) -> RankmemError:
    return RankmemError(
        Code.INVALID,
        f"{path} cannot be read as an SQLite database: "
        f"{error if isinstance(error, sqlite3.Error) else plain(error)}",
        "copy or export the recording again",
    )
