"""Databases without rows that are kept: a new one is a copy; one that is there may have its views already.

Stage: open, before the store. DuckDB binds each view and macro as it is made, with all that it reads: 0.7
seconds of CPU time for all. So an empty database is made once for each version of rankmem and DuckDB. In: the
path of a new database; out: a file there. Two others hold the views alone, for readers
(``reading_instance``), one of them also those of a file's tables. Of an existing database only its catalog is
compared with what this version makes: a stranger's views are not run. What is kept lies in the user's cache,
under names that hold all that decides the content. Where there is none, databases are made and views
installed as if nothing had been kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Final, Literal

import duckdb

from rankmem_aggregator import sql
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.packing import PACKED, PACKED_SCHEMA, is_packed
from rankmem_aggregator.store.stored_tables import FILE, reading_statements, whole
from rankmem_protos.cache_folder import cache_folder
from rankmem_protos.errors import RankmemError

Kind = Literal["empty", "reading", "views"]
KEPT_MAX: Final = 4
"""Databases of each kind of other versions that stay in the cache, 0.8 MB each."""

_VIEWS: Final = """
SELECT schema_name, view_name, sql, comment FROM duckdb_views() WHERE database_name = $catalog
UNION ALL
SELECT
    schema_name,
    function_name,
    function_type || parameters::VARCHAR || parameter_types::VARCHAR || macro_definition,
    comment
FROM duckdb_functions() WHERE database_name = $catalog
"""
_TOO_MANY: Final = ", ".join(["NULL"] * 64)
"""Arguments, for any macro."""
_HEAD: Final = re.compile(r"^CREATE OR REPLACE MACRO (?:(\w+)\.)?(\w+)\([^)]*:=[^)]*\)(.*)", re.MULTILINE)
"""Of a macro some of whose parameters have a value by default: its schema, its name, and what it gives."""
_CHECKSUM_BYTES: Final = 32
_UNORDERED: Final = re.compile(r"\* ?(?:EXCLUDE|REPLACE) \(|\) REPLACE \(")


def place(path: Path, *, is_durable: bool = True) -> bool:
    """Puts an empty database without its row of ``rankmem_meta`` at a path; False where it is not done.

    A file that is there stays as it is.

    Args:
        path: of the new file.
        is_durable: whether it is on the disk when this returns; one that is read and deleted need not be.
    """
    return _place("empty", path, is_durable=is_durable)


def place_reading(path: Path) -> bool:
    """Puts a database at a path that has all views, and those of the tables over the database ``stored``;
    False where it is not done. It is read and deleted: not durable."""
    return _place("reading", path, is_durable=False)


def place_views(path: Path) -> bool:
    """Puts a database at a path that has all views, but none of the tables that they read; False where it is
    not done. It is read and deleted: not durable."""
    return _place("views", path, is_durable=False)


def make(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes in a new database what :func:`place` puts into one."""
    schema.prepare(connection)
    sql.install_views(connection)
    connection.execute(f"DELETE FROM {schema.META.name}")


def make_reading(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes in a new database what :func:`place_reading` puts at a path."""
    ((own,),) = connection.execute("SELECT current_database()").fetchall()
    connection.execute(f"ATTACH ':memory:' AS {FILE}")
    connection.execute(f"USE {FILE}")
    schema.prepare(connection)
    connection.execute(f"USE {schema.quoted(own)}")
    connection.execute(f"CREATE SCHEMA {PACKED_SCHEMA}")
    for table in schema.ALL_TABLES.values():
        for statement in reading_statements(table, whole(table), FILE):
            connection.execute(statement)
    sql.install_views(connection)
    for table in schema.ALL_TABLES.values():
        for statement in schema.view_comment_statements(table):
            connection.execute(statement)
    connection.execute(f"DETACH {FILE}")


def _drop_tables(connection: duckdb.DuckDBPyConnection) -> None:
    for table in schema.ALL_TABLES.values():
        kind = "VIEW" if is_packed(table.name) else "TABLE"
        connection.execute(f"DROP {kind} {schema.quoted(table.name)}")
    connection.execute(f"DROP SCHEMA {PACKED_SCHEMA} CASCADE")


def has_views(connection: duckdb.DuckDBPyConnection, catalog: str) -> bool:
    """Whether the views and macros of an attached database are those that this version makes. Not within a
    transaction."""
    try:
        known = _path("digest").read_text(encoding="ascii")
    except (RankmemError, OSError, ValueError):
        return False
    return known == _digest(connection, catalog)


def keep_views(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Remembers the views and macros that this version has just installed in an attached database."""
    with contextlib.suppress(RankmemError, OSError):
        _put(_digest(connection, catalog).encode("ascii"), _path("digest"), replace=True)


def _place(kind: Kind, path: Path, *, is_durable: bool) -> bool:
    try:
        if path.exists() or Path(f"{path}.wal").exists():
            return False
        _put(_kept(kind) or _made(kind), path, replace=False, is_durable=is_durable)
    except (RankmemError, OSError, duckdb.Error):  # no cache of our own, no hard links, no room
        return False
    return True


def _kept(kind: Kind) -> bytes | None:
    try:
        content = _path(kind).read_bytes()
    except FileNotFoundError:
        return None
    checksum, rest = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return rest if hashlib.sha256(rest).digest() == checksum else None


def _made(kind: Kind) -> bytes:
    """A new database, which is kept."""
    kept = _path(kind)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=kept.parent) as folder:
        made = Path(folder) / f"{kind}.duckdb"
        with duckdb.connect(made, config={"default_block_size": schema.BLOCK_BYTES}) as connection:
            (make_reading if kind == "reading" else make)(connection)
            if kind == "views":
                _drop_tables(connection)
            connection.execute("CHECKPOINT")
            if kind == "empty":
                keep_views(connection, made.stem)
        content = made.read_bytes()
    _put(hashlib.sha256(content).digest() + content, kept, replace=True)
    for names in (f"{kind}-*", "digest-*"):
        by_age = sorted(kept.parent.glob(names), key=lambda path: path.stat().st_mtime_ns)
        for old in by_age[:-KEPT_MAX]:
            old.unlink(missing_ok=True)
    return content


def _put(content: bytes, path: Path, *, replace: bool, is_durable: bool = True) -> None:
    """Writes a whole file, or none."""
    descriptor, name = tempfile.mkstemp(prefix=".rankmem-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
        if replace:
            os.replace(name, path)
        else:
            os.link(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _path(kind: Kind | Literal["digest"]) -> Path:
    return cache_folder() / f"{kind}-{_key()}"


@cache
def _key() -> str:
    """Names what decides how a database is made: DuckDB and all statements."""
    made = hashlib.sha256(f"{duckdb.__version__} {schema.BLOCK_BYTES}".encode())
    for table in schema.ALL_TABLES.values():
        for statement in schema.creating_statements(table):
            made.update(statement.encode())
        for statement in reading_statements(table, whole(table), FILE):
            made.update(statement.encode())
    for statement in sql.view_statements():
        made.update(statement.encode())
    return made.hexdigest()[:32]


def _digest(connection: duckdb.DuckDBPyConnection, catalog: str) -> str:
    """Of the definitions of our views and macros in a database, whatever else it has."""
    ours = {("main", name) for name in (*sql.view_names(), *PACKED)}
    ours |= {("mindstudio", name) for name in sql.mindstudio_names()}
    rows = connection.execute(_VIEWS, {"catalog": catalog}).fetchall()
    found = sorted(
        repr((place, name, _in_order(definition), comment))
        for place, name, definition, comment in rows
        if (place, name) in ours
    )
    found += [_signatures(connection, catalog, *macro) for macro in _with_defaults()]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


@cache
def _with_defaults() -> tuple[tuple[str, str, bool], ...]:
    """Our macros some of whose parameters have a value by default: schema, name, whether it gives a table."""
    heads = filter(None, map(_HEAD.search, sql.view_statements()))
    return tuple((head[1] or "main", head[2], "AS TABLE" in head[3]) for head in heads)


def _signatures(
    connection: duckdb.DuckDBPyConnection, catalog: str, place: str, name: str, is_table: bool
) -> str:
    """A macro's parameters with their defaults. DuckDB lists these nowhere but in its answer to a call that
    does not fit, which ends a transaction; to make such macros again takes 0.18 s."""
    macro = ".".join(map(schema.quoted, (catalog, place, name)))
    try:
        connection.execute(f"{'FROM' if is_table else 'SELECT'} {macro}({_TOO_MANY})")
    except duckdb.Error as exc:
        return str(exc).partition("Candidate")[2].partition("\n\n")[0]  # behind it is the statement
    return ""


def _in_order(definition: str) -> str:
    """The definition with the columns of each EXCLUDE and REPLACE sorted: DuckDB keeps them in no order, and
    writes them in another one each time a file is opened."""
    parts: list[str] = []
    at = 0
    while mark := _UNORDERED.search(definition, at):
        columns, end = _columns(definition, mark.end())
        parts += definition[at : mark.end()], ", ".join(sorted(columns))
        at = end
    return "".join((*parts, definition[at:]))


def _columns(definition: str, begin: int) -> tuple[list[str], int]:
    """The columns of a list that begins there, and where its bracket closes."""
    columns, depth = [""], 1
    for at in range(begin, len(definition)):
        char = definition[at]
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return [column.strip() for column in columns], at
        if char == "," and depth == 1:
            columns.append("")
        else:
            columns[-1] += char
    return [], begin
