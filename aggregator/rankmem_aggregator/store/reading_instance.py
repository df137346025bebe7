"""DuckDB's instance in which a database file is read: an empty one, with the file attached read-only.

Stage: open, in the reader's process. In: the path of a file that may come from a stranger; out: cursors whose
catalog has our own views over the file's tables. The file's views, macros and types are in another catalog,
which no name refers to unless it says so (``stored.main.…``); and statements see no other files, extensions,
settings: the instance is confined before the first name is looked up.

Making all views takes 0.7 s of CPU time, more than most queries. So the instance is a copy of a database that
is kept, which has them all, and the views of the tables, as this version stores them. A file of another
version, and a lake, gets those of its own tables, of which only those are made that a statement needs, and
the other views from another one that is kept, for 0.015 s. Where none can be kept, those views are made that
a statement names, with those that they read. All of them are made where a statement reads the catalog, or a
name is not found.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import duckdb

from rankmem_aggregator.sandbox.statements import name_of, type_of
from rankmem_aggregator.sql import mindstudio_names, mindstudio_text, view_names, view_text, without_texts
from rankmem_aggregator.store import schema, templates
from rankmem_aggregator.store.instance import CONFINEMENT, ISOLATED, TIME_ZONE, Settings
from rankmem_aggregator.store.packing import PACKED_SCHEMA
from rankmem_aggregator.store.stored_tables import FILE, reading_statements, stored_tables, whole
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import Table

TEXTS_KNOWN_MAX: Final = 256
"""Statements that were looked through once and are let through when they come again, as the page's do."""
MINDSTUDIO: Final = "mindstudio"
_VIEWS: Final = "views"
_IN_MEMORY: Final = "memory"
"""Name of an instance's own database, where DuckDB gives it one."""

_READING: Final = frozenset(
    {
        duckdb.StatementType.SELECT,
        duckdb.StatementType.EXPLAIN,
        duckdb.StatementType.MULTI,  # a PIVOT without its values
        duckdb.StatementType.RELATION,
        duckdb.StatementType.PRAGMA,
        duckdb.StatementType.CALL,
        duckdb.StatementType.SET,  # of a variable; settings are locked
        duckdb.StatementType.VARIABLE_SET,
    }
)
_HOLDS_ANOTHER: Final = frozenset({duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI})
"""These may hold a COPY, which the kind does not show: EXPLAIN ANALYZE runs one, and a PIVOT is several
statements. DuckDB lets it write to an attached file itself, whatever is confined (2.0)."""
_WORD: Final = re.compile(r"\w+")
_CATALOG_WORDS: Final = re.compile(
    r"\b(?:show|describe|information_schema|query|query_table|duckdb_\w+|pragma\w*|pg_\w+|sqlite_\w+)\b"
    r"|(?:^|;)\s*desc\b",
    re.IGNORECASE,
)
"""A statement with one of these may read the catalog."""


class ConfinedInstance:
    """An instance that answers from tables elsewhere. Not safe for use by several threads at once.

    Args:
        connection: of an instance that holds nothing of its own; confined before the first question.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._missing = dict.fromkeys(_in_order())
        self._let_through: set[str] = set()

    def _confine(self) -> None:
        for setting in (TIME_ZONE, *CONFINEMENT):
            self._connection.execute(setting)

    def _take_views(self) -> None:
        """Has all views but those of tables, if a database of them is kept: in a thirtieth of the time that
        making them takes. Before the instance is confined."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rankmem-views-"))
            except OSError:  # nowhere to write, or no room
                return
            path = Path(folder) / "views.duckdb"
            if not templates.place_views(path):
                return
            self._connection.execute(f"ATTACH {schema.literal(str(path))} AS {_VIEWS} (READ_ONLY)")
            self._connection.execute(f"COPY FROM DATABASE {_VIEWS} TO memory (SCHEMA)")
            self._connection.execute(f"DETACH {_VIEWS}")
        self._missing = dict.fromkeys(schema.ALL_TABLES)

    def _table_statements(self, table: Table) -> list[str]:
        """The statements for the view of a table: all declared columns, NULL where there are none."""
        raise NotImplementedError

    def _present(self) -> dict[str, set[str]]:
        """The columns that each table has, by its name."""
        raise NotImplementedError

    @property
    def is_whole(self) -> bool:
        """Whether all views are made."""
        return not self._missing

    def cursor(self, text: str) -> duckdb.DuckDBPyConnection:
        """A new connection, with the views that the statement names, in a read-only transaction."""
        cursor = self._connection.cursor()
        if text not in self._let_through:
            self._make(names_read(text))
            _check_kinds(cursor, text)
            if len(self._let_through) < TEXTS_KNOWN_MAX:
                self._let_through.add(text)
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        return cursor

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[str, set[str]]]]:
        """A connection that sees one state of all tables, and the columns that each has."""
        self._make(frozenset(schema.ALL_TABLES))
        with self._connection.cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor, self._present()

    def complete(self) -> None:
        """Makes all views, with their comments."""
        self._make(frozenset(_in_order()))

    def close(self) -> None:
        """Closes the instance and what it reads."""
        self._connection.close()

    def _make(self, names: frozenset[str]) -> None:
        made = [name for name in self._missing if name in names]
        if not made:
            return
        self._connection.execute("BEGIN TRANSACTION")
        try:
            for name in made:
                for statement in self._statements(name):
                    self._connection.execute(statement)
            if len(made) == len(self._missing):
                for table in schema.ALL_TABLES.values():
                    for statement in schema.view_comment_statements(table):
                        self._connection.execute(statement)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        for name in made:
            del self._missing[name]

    def _statements(self, name: str) -> list[str]:
        table = schema.ALL_TABLES.get(name)
        return [_text_of(name)] if table is None else self._table_statements(table)


class ReadingInstance(ConfinedInstance):
    """An open file.

    Args:
        path: of a database file.

    Raises:
        RankmemError: INVALID for a file that rankmem did not make, UNSUPPORTED for one of a newer schema.
        duckdb.Error: DuckDB cannot open it.
    """

    def __init__(self, path: Path) -> None:
        # The temporary folder is DuckDB's own for a file that it opens.
        settings: Settings = {"temp_directory": f"{path}.tmp", **ISOLATED}
        kept = _with_views(settings)
        if kept is not None:
            super().__init__(kept)
            self._missing = {}
            self._open(path)
            if self._is_as_kept():
                return
            self._connection.close()
        super().__init__(duckdb.connect(":memory:", config=settings))
        self._open(path, takes_views=True)
        self._connection.execute(f"CREATE SCHEMA {PACKED_SCHEMA}")
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {MINDSTUDIO}")

    def _open(self, path: Path, *, takes_views: bool = False) -> None:
        """Attaches the file, confines the instance, and looks which tables the file has."""
        try:
            # An absolute path has no prefix that DuckDB takes for another kind of database.
            place = schema.literal(str(path.absolute()))
            self._connection.execute(f"ATTACH {place} AS {FILE} (TYPE duckdb, READ_ONLY)")
            if takes_views:
                self._take_views()
            self._confine()
            self._tables = stored_tables(self._connection, FILE)
            self._check_version(f"{FILE}.main.{schema.META.name}")
        except BaseException:
            self._connection.close()
            raise

    def _is_as_kept(self) -> bool:
        """Whether the file has all tables as this version stores them, so that the kept views fit."""
        return self._tables == {name: whole(table) for name, table in schema.ALL_TABLES.items()}

    def _check_version(self, meta: str) -> None:
        """Refuses a newer file; ignores the summaries of an older one, which name other groups."""
        schema.check_version(self._connection, meta)
        if schema.version_of(self._connection, meta) < schema.SUMMARIES_SINCE:
            for name in SUMMARY_TABLES:
                self._tables.pop(name, None)

    def _table_statements(self, table: Table) -> list[str]:
        return reading_statements(table, self._tables.get(table.name), FILE)

    def _present(self) -> dict[str, set[str]]:
        return {name: set(table.columns) for name, table in self._tables.items()}


def _with_views(settings: Settings) -> duckdb.DuckDBPyConnection | None:
    """An instance with all views over a file of this version, which nobody can change; None without one."""
    try:
        with tempfile.TemporaryDirectory(prefix="rankmem-views-") as folder:
            path = Path(folder) / f"{_IN_MEMORY}.duckdb"
            if not templates.place_reading(path):
                return None
            # It holds the file open: the name may go.
            return duckdb.connect(path, read_only=True, config=settings)
    except (OSError, duckdb.Error):  # nowhere to write, no room, or it does not open
        return None


class BareInstance:
    """A file as DuckDB opens it: its own views and macros, no limits but read-only. The same interface."""

    is_whole = True

    def __init__(self, path: Path) -> None:
        self._connection = duckdb.connect(str(path), read_only=True)
        # GLOBAL: each query runs on a cursor of its own, which would have the machine's zone.
        self._connection.execute(TIME_ZONE)

    def cursor(self, text: str) -> duckdb.DuckDBPyConnection:
        """A new connection."""
        return self._connection.cursor()

    def complete(self) -> None:
        """Does nothing: there are no views to make."""

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[str, set[str]]]]:
        """A connection that sees one state of all tables, and the columns that each has."""
        with self._connection.cursor() as cursor:
            cursor.begin()
            yield cursor, schema.columns_present(cursor)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def _check_kinds(cursor: duckdb.DuckDBPyConnection, text: str) -> None:
    """Refuses statements that do not read. The instance would, too: this adds what to do instead."""
    for statement in cursor.extract_statements(text):
        kind = type_of(statement)
        if kind in _HOLDS_ANOTHER and _has_copy(statement.query):
            kind = duckdb.StatementType.COPY
        if kind in _READING:
            continue
        if kind == duckdb.StatementType.COPY:
            hint = "rankmem sql --out FILE.csv, .json or .parquet writes an answer"
        else:
            hint = "only reading statements run here; rankmem sql --unsafe is DuckDB bare, for your own file"
        raise RankmemError(Code.DENIED, f"{name_of(kind)} is not allowed on a database file", hint)


def _has_copy(text: str) -> bool:
    """Whether the word COPY is in a statement, outside of quotes and comments."""
    data = text.encode()
    begins = duckdb.tokenize(text)
    ends = [*(offset for offset, _ in begins[1:]), len(data)]
    return any(
        kind == duckdb.token_type.keyword and data[begin:end].strip().lower() == b"copy"
        for (begin, kind), end in zip(begins, ends, strict=True)
    )


@cache
def _in_order() -> tuple[str, ...]:
    """All tables and views in the order in which they can be made; those of MindStudio with their schema."""
    return (*schema.ALL_TABLES, *view_names(), *(f"{MINDSTUDIO}.{name}" for name in mindstudio_names()))


def _text_of(name: str) -> str:
    folder, _, view = name.rpartition(".")
    return mindstudio_text(view) if folder else view_text(view)


@lru_cache(maxsize=TEXTS_KNOWN_MAX)
def names_read(text: str) -> frozenset[str]:
    """The tables and views that a statement may read: all where it may look them up in the catalog."""
    if _CATALOG_WORDS.search(without_texts(text)):
        return frozenset(_in_order())
    return needed_names(text)


def needed_names(text: str) -> frozenset[str]:
    """The tables and views that a statement names, and those that they read."""
    needed: set[str] = set()
    waiting = list(_named(text))
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += _reads(name)
    return frozenset(needed)


@cache
def _reads(name: str) -> frozenset[str]:
    """The tables and views that a table or view of ours reads."""
    return frozenset() if name in schema.ALL_TABLES else _named(without_texts(_text_of(name)))


def _named(text: str) -> frozenset[str]:
    words = set(_WORD.findall(text.lower()))
    found = {name for name in (*schema.ALL_TABLES, *view_names()) if name in words}
    if MINDSTUDIO in words:
        found |= {f"{MINDSTUDIO}.{name}" for name in mindstudio_names() if name.lower() in words}
    return frozenset(found)
