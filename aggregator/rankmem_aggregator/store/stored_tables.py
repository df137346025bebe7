"""The tables of a database file, checked before anything is read: they may come from a stranger.

Stage: open. In: a connection in which the file is attached, external access already off; out: the tables of
ours that it has, or a refusal. Only tables count, with the declared columns in their declared types: a view,
a macro or a generated column of the file is code of the file's maker. Reads the catalog and the row of
``rankmem_meta`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import duckdb

from rankmem_aggregator.store import schema
from rankmem_aggregator.store.packing import PACKED_SCHEMA, form_of, is_packed
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Table

FILE: Final = "stored"
"""Name of the database of a file that is read, within the instance that reads it."""
TableName = tuple[str, str]
"""Schema and table."""
_COLUMNS: Final = """
SELECT schema_name, table_name, column_name, data_type, is_generated
FROM duckdb_columns()
WHERE database_name = $file AND (schema_name, table_name) IN
    (SELECT (schema_name, table_name) FROM duckdb_tables() WHERE database_name = $file)
"""
_NOT_OURS: Final = "give a database made by rankmem"
_OURS_ALONE: Final = (
    "record into a new file; rankmem export duckdb writes a copy with rankmem's own tables alone"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """One of our tables in a file."""

    table_name: TableName
    columns: frozenset[str]
    is_packed: bool
    """Whether it is in the packed form; files of an unreleased version have it as declared."""


def whole(table: Table) -> StoredTable:
    """A table as this version stores it."""
    place = PACKED_SCHEMA if is_packed(table.name) else "main"
    return StoredTable(
        table_name=(place, table.name),
        columns=frozenset(c.name for c in table.columns),
        is_packed=is_packed(table.name),
    )


def stored_tables(connection: duckdb.DuckDBPyConnection, file: str) -> dict[str, StoredTable]:
    """Our tables in the database ``file``, by their names.

    Raises:
        RankmemError: INVALID for a database that rankmem did not make, or a table that differs from its own.
        duckdb.Error: the catalog cannot be read.
    """
    present: dict[TableName, dict[str, tuple[str, bool]]] = {}
    for place_schema, table, column, kind, is_generated in connection.execute(
        _COLUMNS, {"file": file}
    ).fetchall():
        present.setdefault((place_schema, table), {})[column] = (kind, is_generated)
    found = {
        table.name: stored for table in schema.ALL_TABLES.values() if (stored := _stored(table, present))
    }
    if schema.META.name not in found:
        raise RankmemError(Code.INVALID, f"it has no table {schema.META.name}", _NOT_OURS)
    return found


def check_nothing_runs(connection: duckdb.DuckDBPyConnection, file: str) -> None:
    """Refuses a file in which writing or our own SQL would run foreign code.

    Triggers run on our inserts; a macro of the file hides DuckDB's function of the same name, in any case.

    Raises:
        RankmemError: INVALID, with its name.
    """
    triggers = connection.execute(
        "SELECT trigger_name FROM duckdb_triggers() WHERE database_name = $file ORDER BY ALL", {"file": file}
    ).fetchall()
    macros = connection.execute(
        # Listed once: all functions take 25 ms.
        "SELECT min(function_name) FILTER (WHERE database_name = $file) FROM duckdb_functions() "
        "WHERE database_name IN ($file, 'system') GROUP BY lower(function_name) "
        "HAVING bool_or(database_name = $file) AND bool_or(database_name = 'system') ORDER BY ALL",
        {"file": file},
    ).fetchall()
    for kind, rows in (("trigger", triggers), ("macro", macros)):
        if rows:
            raise RankmemError(
                Code.INVALID, f"the database has a {kind} {rows[0][0]} that rankmem did not make", _OURS_ALONE
            )


def reading_statements(table: Table, stored: StoredTable | None, file: str) -> list[str]:
    """The statements for the view of a table: all declared columns, NULL where the file has none.

    Args:
        stored: the table in the file; None: the file has none, and the view no rows.
        file: the name of its database.
    """
    in_own_form = is_packed(table.name) and (stored is None or stored.is_packed)
    name = schema.stored_name(table) if in_own_form else schema.quoted(table.name)
    columns = ", ".join(_column(table, c.name, stored, in_own_form=in_own_form) for c in table.columns)
    rows = f"{file}.{'.'.join(map(schema.quoted, stored.table_name))}" if stored else "range(0)"
    made = [f"CREATE VIEW {name} AS SELECT {columns} FROM {rows}"]
    return [*made, *schema.view_statements(table)[:1]] if in_own_form else made


def _column(table: Table, column: str, stored: StoredTable | None, *, in_own_form: bool) -> str:
    if stored is not None and column in stored.columns:
        return schema.quoted(column)
    return f"CAST(NULL AS {_type(table, column, in_own_form=in_own_form)}) AS {schema.quoted(column)}"


def _type(table: Table, column: str, *, in_own_form: bool) -> str:
    form = form_of(table.name, column) if in_own_form else None
    declared = next(c.type for c in table.columns if c.name == column)
    return schema.duckdb_type(declared) if form is None else form.type


def _stored(table: Table, present: Mapping[TableName, Mapping[str, tuple[str, bool]]]) -> StoredTable | None:
    packed = is_packed(table.name)
    for in_own_form in (True, False) if packed else (False,):
        table_name = (PACKED_SCHEMA if in_own_form else "main", table.name)
        if table_name in present:
            _check_columns(table, table_name, present[table_name], in_own_form=in_own_form)
            ours = frozenset(c.name for c in table.columns if c.name in present[table_name])
            return StoredTable(table_name=table_name, columns=ours, is_packed=in_own_form)
    return None


def _check_columns(
    table: Table, table_name: TableName, columns: Mapping[str, tuple[str, bool]], *, in_own_form: bool
) -> None:
    for column in table.columns:
        if column.name not in columns:
            continue
        kind, is_generated = columns[column.name]
        declared = _type(table, column.name, in_own_form=in_own_form)
        if is_generated or kind != declared:
            found = "a generated column" if is_generated else kind
            raise RankmemError(
                Code.INVALID,
                f"its column {'.'.join(table_name)}.{column.name} is {found}, not {declared}",
                _NOT_OURS,
            )
