"""The database's tables, made from their declarations: DDL, comments, statements, versions.

Stage: store. In: ``rankmem_protos.tables``. Out: the SQL text that creates, comments, fills and
upgrades them, and :func:`prepare`, which brings an opened file to this version. Identifiers and
comments come from declarations in this source tree and are quoted; no value from outside enters SQL text.
Besides the declared tables a database has summaries and a few small :data:`INTERNAL_TABLES`. The largest
tables are stored in the schema ``packed`` in another form (``packing``), and are views of it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.store.packing import (
    PACKED,
    PACKED_SCHEMA,
    form_of,
    is_packed,
    packed_rows,
    reading_view,
)
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import SCHEMA_VERSION, TABLES, Column, Table

INCOMING: Final = "rankmem_incoming"
"""Name under which the rows to store are registered on the write connection."""

BLOCK_BYTES: Final = 65_536
"""Block of a new file. Every table fills at least one: 20 small ones took 5 MB with DuckDB's own 262,144,
and the large ones 3 bytes an event more. With less DuckDB 2.0 does not compress (102 bytes an event)."""


def _required(name: str, kind: pa.DataType, doc: str, unit: str = "") -> Column:
    return Column(name=name, type=kind, doc=doc, unit=unit, nullable=False)


META: Final = Table(
    name="rankmem_meta",
    doc="One row: which database this is. Made with the file.",
    columns=(
        _required("schema_version", pa.int32(), "Version of the tables; see docs/schema.md."),
        _required("database_id", pa.string(), "Random name of this database."),
        _required("created_ns", pa.int64(), "When the file was made.", "ns"),
    ),
)
INGEST_PROGRESS: Final = Table(
    name="ingest_progress",
    doc="How far each spool (the log of one rank process) is stored; written in the transaction of its rows.",
    key=("spool_id",),
    columns=(
        _required("spool_id", pa.string(), "The spool; see rank_info."),
        _required("session_id", pa.string(), "The job."),
        _required("attempt", pa.int32(), "Which start of the workers."),
        _required("rank", pa.int32(), "Global rank."),
        _required("last_sequence", pa.int64(), "Last position stored."),
        _required("final", pa.bool_(), "True once the spool's last batch is stored."),
        _required("updated_ns", pa.int64(), "When, on the aggregator's clock.", "ns"),
        Column(
            name="secret_hash",
            type=pa.string(),
            doc="SHA-256 of the secret that opens the spool; NULL: it was made by an older version.",
        ),
    ),
)
STACK: Final = Table(
    name="stack_hash",
    doc="The number this database gave to a stack, by the hash of its frames.",
    columns=(
        _required("stack_id", pa.int32(), "Number of the stack; see stack_frame."),
        _required("stack_hash", pa.int64(), "Hash of its frames, as shippers send it."),
    ),
)
PRUNED_SPOOL: Final = Table(
    name="pruned_spool",
    doc="A log of a session that was deleted by rankmem prune or for a limit: how far it was stored.",
    columns=(
        *(column for column in INGEST_PROGRESS.columns if column.name != "updated_ns"),
        _required("pruned_ns", pa.int64(), "When, on the aggregator's clock.", "ns"),
        _required("has_rows", pa.bool_(), "True until all that was stored of its session is deleted."),
    ),
)
SPOOL_START: Final = Table(
    name="spool_start",
    doc="As which attempt a spool is stored, and of which start of the workers; written with its rows.",
    key=("spool_id",),
    columns=(
        *INGEST_PROGRESS.columns[:4],
        _required(
            "declared_attempt",
            pa.int32(),
            "The attempt by the count of its host; another one where that was another start's already.",
        ),
        _required(
            "start",
            pa.string(),
            "Names the start of the workers: the same for all its ranks; empty: an older agent's.",
        ),
        _required("launch", pa.string(), "Names what launched the rank on its host; empty: not known."),
    ),
)

INTERNAL_TABLES: Final = {
    table.name: table for table in (META, INGEST_PROGRESS, STACK, PRUNED_SPOOL, SPOOL_START)
}
SUMMARIES_SINCE: Final = 11
"""In older databases summaries have no group for blocks older than a recording: they are written again."""
ALL_TABLES: Final = TABLES | SUMMARY_TABLES | INTERNAL_TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """The row of ``rankmem_meta``."""

    database_id: str
    schema_version: int
    created_ns: int


def prepare(connection: duckdb.DuckDBPyConnection, *, has_views: bool = False) -> DatabaseFacts:
    """Creates missing tables and columns in one transaction; returns which database this is.

    Args:
        has_views: the views of packed tables are those of this version: they are made again only where
            their tables get new columns.

    Raises:
        RankmemError: UNSUPPORTED for a file of a newer schema, or of one before packed tables; INVALID for a
            database that is not ours but has tables with our names.
    """
    connection.execute("BEGIN TRANSACTION")
    try:
        present = _columns_present(connection)
        _check_names(present)
        if META.name in present:
            check_version(connection, META.name)
        for table in ALL_TABLES.values():
            for statement in _statements_to_upgrade(table, present.get(_key(table)), has_views=has_views):
                connection.execute(statement)
        if META.name in present and version_of(connection, META.name) < SUMMARIES_SINCE:
            for name in SUMMARY_TABLES:
                connection.execute(f"DELETE FROM {quoted(name)}")
        facts = write_meta(connection)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):  # a failed COMMIT has done it
            connection.execute("ROLLBACK")
        raise
    return facts


def write_meta(connection: duckdb.DuckDBPyConnection) -> DatabaseFacts:
    """Writes which database this is into its tables, if nothing did, or their version; returns it."""
    row = connection.execute("SELECT database_id, created_ns FROM rankmem_meta").fetchone()
    if row is None:
        row = (secrets.token_hex(8), time.time_ns())
        connection.execute("INSERT INTO rankmem_meta VALUES (?, ?, ?)", [SCHEMA_VERSION, *row])
    else:
        connection.execute(
            "UPDATE rankmem_meta SET schema_version = ? WHERE schema_version < ?", [SCHEMA_VERSION] * 2
        )
    return DatabaseFacts(database_id=row[0], schema_version=SCHEMA_VERSION, created_ns=row[1])


def stored_name(table: Table) -> str:
    """The table that holds the rows of a table: itself, or the packed one that it is a view of. Quoted."""
    return f"{PACKED_SCHEMA}.{quoted(table.name)}" if is_packed(table.name) else quoted(table.name)


def creating_statements(table: Table) -> list[str]:
    """The statements that create a table: schema, table, view where it is packed, comments."""
    made = [create_statement(table), *comment_statements(table)]
    if not is_packed(table.name):
        return made
    return [f"CREATE SCHEMA IF NOT EXISTS {PACKED_SCHEMA}", *made, *view_statements(table)]


def create_statement(table: Table) -> str:
    """``CREATE TABLE`` for one table. No key constraint: an index costs every insert."""
    columns = ", ".join(
        f"{quoted(c.name)} {_stored_type(table, c)}{'' if _may_be_null(table, c) else ' NOT NULL'}"
        for c in table.columns
    )
    return f"CREATE TABLE {stored_name(table)} ({columns})"


def comment_statements(table: Table) -> list[str]:
    """``COMMENT ON`` the stored table and each of its columns; a unit follows the sentence."""
    if not is_packed(table.name):
        return _comments("TABLE", quoted(table.name), table.doc, _column_docs(table))
    docs = _column_docs(table)
    for column in table.columns:
        form = form_of(table.name, column.name)
        if form is not None:
            docs[column.name] = form.doc
    doc = f"The rows of {table.name} in their form on disk: read the view of that name."
    return _comments("TABLE", stored_name(table), doc, docs)


def view_statements(table: Table) -> list[str]:
    """The view of a packed table under its declared name, with the declared comments."""
    return [reading_view(table.name), *view_comment_statements(table)]


def view_comment_statements(table: Table) -> list[str]:
    """The declared comments, on a view of the table's name and columns."""
    return _comments("VIEW", quoted(table.name), table.doc, _column_docs(table))


def select_statement(table: Table, present: Collection[str] | None = None) -> str:
    """All rows of a table, columns in declared order.

    Args:
        present: its columns in a file that may be of an older version; others are NULL.
    """
    columns = ", ".join(
        quoted(c.name)
        if present is None or c.name in present
        else f"CAST(NULL AS {duckdb_type(c.type)}) AS {quoted(c.name)}"
        for c in table.columns
    )
    return f"SELECT {columns} FROM {quoted(table.name)}"


def columns_present(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    """The columns of each of our tables that the database has, by the table's name."""
    present = _columns_present(connection)
    # A packed table has a view of its name with the declared columns.
    return {table.name: present[_key(table)] for table in ALL_TABLES.values() if _key(table) in present}


def check_version(connection: duckdb.DuckDBPyConnection, meta: str) -> None:
    """Refuses a database of a newer schema: the meaning of its tables is unknown.

    Args:
        meta: the name of ``rankmem_meta`` in the statement, one of ours.

    Raises:
        RankmemError: UNSUPPORTED, with both versions.
    """
    version = version_of(connection, meta)
    if version > SCHEMA_VERSION:
        raise RankmemError(
            Code.UNSUPPORTED,
            f"the database has schema version {version}, this rankmem knows up to {SCHEMA_VERSION}",
            "upgrade rankmem: pip install --upgrade rankmem",
        )


def version_of(connection: duckdb.DuckDBPyConnection, meta: str) -> int:
    """The schema version of a database, 0 where it has none. ``meta``: as in :func:`check_version`."""
    ((version,),) = connection.execute(f"SELECT max(schema_version) FROM {meta}").fetchall()
    return int(version or 0)


def append_statement(table: Table, source: str = INCOMING, *, few: bool = False) -> str:
    """Appends the rows registered under the name ``source``, one of ours.

    Args:
        few: less than a row group. Where an insert's sources can be numbered in batches, DuckDB 2.0 with
            several threads plans one that first collects few rows elsewhere and then appends them again. A
            second, empty source that cannot be numbered prevents that: 0.4 CPU seconds a million events less.
    """
    columns = _column_list(table)
    rows = packed_rows(table.name, source)
    statement = f"INSERT INTO {stored_name(table)} ({columns}) SELECT {columns} FROM {rows}"
    if not few:
        return statement
    nothing = ", ".join("NULL" for _ in table.columns)
    return f"{statement} UNION ALL SELECT {nothing} FROM range(0)"


def store_statement(table: Table, source: str = INCOMING) -> str:
    """Stores the rows registered under the name ``source``: appended, or merged where the table has a key."""
    if not table.key:
        return append_statement(table, source)
    match = " AND ".join(f"present.{quoted(key)} = {source}.{quoted(key)}" for key in table.key)
    rest = [name for name in table.column_names() if name not in table.key]
    changes = ", ".join(f"{quoted(name)} = {source}.{quoted(name)}" for name in rest)
    values = ", ".join(f"{source}.{quoted(name)}" for name in table.column_names())
    return (
        f"MERGE INTO {quoted(table.name)} AS present USING {source} ON ({match}) "
        f"WHEN MATCHED THEN UPDATE SET {changes} "
        f"WHEN NOT MATCHED THEN INSERT ({_column_list(table)}) VALUES ({values})"
    )


def delete_statement(table: Table, *, in_slice: bool = False) -> str:
    """Deletes the rows of ``$session``; in a slice those with ``$least`` <= rowid < ``$upto``."""
    rows = " AND rowid >= $least AND rowid < $upto" if in_slice else ""
    return f"DELETE FROM {stored_name(table)} WHERE session_id = $session{rows}"


def span_statement(table: Table) -> str:
    """The lowest and highest rowid of the rows of ``$session`` as least and most, NULL without any."""
    name = stored_name(table)
    return f"SELECT min(rowid) AS least, max(rowid) AS most FROM {name} WHERE session_id = $session"


def duckdb_type(arrow: pa.DataType) -> str:
    """The column type in DuckDB."""
    if pa.types.is_dictionary(arrow):
        return duckdb_type(arrow.value_type)
    return _TYPES[arrow]


def quoted(identifier: str) -> str:
    """An SQL identifier."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """An SQL string; for comments alone, which cannot be parameters."""
    return "'" + text.replace("'", "''") + "'"


_TYPES: Final = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.float64(): "DOUBLE",
}


def _stored_type(table: Table, column: Column) -> str:
    form = form_of(table.name, column.name)
    return duckdb_type(column.type) if form is None else form.type


def _may_be_null(table: Table, column: Column) -> bool:
    form = form_of(table.name, column.name)
    return column.nullable or (form is not None and form.null_means)


def _column_list(table: Table) -> str:
    return ", ".join(quoted(name) for name in table.column_names())


def _column_docs(table: Table) -> dict[str, str]:
    return {c.name: f"{c.doc} [{c.unit}]" if c.unit else c.doc for c in table.columns}


def _comments(kind: str, name: str, doc: str, column_docs: dict[str, str]) -> list[str]:
    lines = [f"COMMENT ON {kind} {name} IS {literal(doc)}"]
    for column, text in column_docs.items():
        lines.append(f"COMMENT ON COLUMN {name}.{quoted(column)} IS {literal(text)}")
    return lines


def _key(table: Table) -> str:
    """Its key in the result of :func:`_columns_present`."""
    return f"{PACKED_SCHEMA}.{table.name}" if is_packed(table.name) else table.name


def _columns_present(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    """Columns of each table (no view) by its name; those of the schema ``packed`` as ``packed.name``."""
    rows = connection.execute(
        "SELECT if(schema_name = 'main', '', schema_name || '.') || table_name, list(column_name) "
        "FROM duckdb_columns() WHERE database_name = current_database() AND (schema_name, table_name) IN "
        "(SELECT (schema_name, table_name) FROM duckdb_tables() WHERE database_name = current_database()) "
        "GROUP BY ALL"
    ).fetchall()
    return {name: set(columns) for name, columns in rows}


def _check_names(present: Collection[str]) -> None:
    """Refuses a database with tables under the names of our tables or views."""
    if META.name not in present:
        taken = sorted({*ALL_TABLES, *map(_key, ALL_TABLES.values())} & set(present))
        if taken:
            raise RankmemError(
                Code.INVALID,
                f"the database has tables {taken} that rankmem did not make",
                "give another file with --db",
            )
    elif unpacked := sorted(set(PACKED) & set(present)):
        raise RankmemError(
            Code.UNSUPPORTED,
            f"the database stores {', '.join(unpacked)} in the form of an unreleased version of rankmem",
            "record into a new file: give another one with --db",
        )


def _statements_to_upgrade(table: Table, present: set[str] | None, *, has_views: bool) -> list[str]:
    """The statements that add what a table lacks. Later columns are nullable: older rows have no value."""
    if present is None:
        return creating_statements(table)
    missing = [column for column in table.columns if column.name not in present]
    name = stored_name(table)
    added = [f"ALTER TABLE {name} ADD COLUMN {quoted(c.name)} {_stored_type(table, c)}" for c in missing]
    upgraded = [*added, *comment_statements(table)] if added else []
    needs_view = is_packed(table.name) and (added or not has_views)
    return [*upgraded, *view_statements(table)] if needs_view else upgraded
