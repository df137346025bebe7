"""The names of a database's functions, macros and views, by which a client's SQL is checked.

Stage: query, in the sandbox. In: a cursor; out: names in lower case, read once: a client cannot make any,
and reading them takes most of a small query's time.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from rankmem_aggregator.store.schema import ALL_TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Names in lower case."""

    functions: frozenset[str]
    """Of every kind, DuckDB's and the database's."""
    scalar_macros: frozenset[str]
    """Macros that stand as values, DuckDB's and the database's: their text is planned in their place."""
    own_scalar_macros: frozenset[str]
    """The database's alone."""
    own_table_macros: frozenset[str]
    own_views: frozenset[str]
    """But for those that stand as our tables: in a lake each does, and is planned nearly as fast as one."""


def read_catalog(cursor: duckdb.DuckDBPyConnection) -> Catalog:
    """The catalog of the cursor's database."""
    functions = cursor.execute(
        "SELECT DISTINCT lower(function_name), function_type, internal FROM duckdb_functions() "
        "WHERE database_name IN (current_database(), 'system')"
    ).fetchall()
    views = cursor.execute(
        "SELECT lower(view_name) FROM duckdb_views() "
        "WHERE NOT internal AND database_name = current_database()"
    ).fetchall()
    return Catalog(
        functions=frozenset(name for name, _, _ in functions),
        scalar_macros=frozenset(name for name, kind, _ in functions if kind == "macro"),
        own_scalar_macros=_own(functions, "macro"),
        own_table_macros=_own(functions, "table_macro"),
        own_views=frozenset(name for (name,) in views if name not in ALL_TABLES),
    )


def _own(functions: list[tuple[str, str, bool]], kind: str) -> frozenset[str]:
    return frozenset(name for name, its_kind, internal in functions if its_kind == kind and not internal)
