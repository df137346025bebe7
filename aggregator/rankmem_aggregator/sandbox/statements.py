"""Checks a client's SQL before it runs: it must be one statement that only reads the data.

Stage: query. In: SQL text; out: nothing, or a refusal with its reason. The fences, each enough against most
escapes: the instance is opened without external access and with its settings locked (``store``); DuckDB's
own parser must see exactly one SELECT-like statement; every function that it calls as a table must only read
the data (some of DuckDB's take raw pointers, write logs, checkpoint, or run SQL from a string); every other
must be on the list (``function_list``); its plan must be bounded (``statement_size``); the transaction is
read-only (``client_queries``). Never runs the statement itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import duckdb

from rankmem_aggregator.sandbox.catalog import Catalog
from rankmem_aggregator.sandbox.functions import check_call
from rankmem_aggregator.sandbox.statement_size import check_size
from rankmem_protos.errors import Code, RankmemError

SQL_BYTES_MAX: Final = 128 << 10
"""A statement of a person or a program; the parser's memory is a thousand times the text, and 1 MiB of an
IN list takes seconds to parse."""

TABLE_FUNCTIONS: Final = frozenset(
    {
        "duckdb_columns", "duckdb_constraints", "duckdb_functions", "duckdb_keywords",
        "duckdb_memory", "duckdb_schemas", "duckdb_tables", "duckdb_types", "duckdb_views",
        "generate_series", "histogram", "histogram_values", "pg_timezone_names",
        "pragma_database_size", "pragma_storage_info", "pragma_table_info", "pragma_version", "range",
        "repeat", "repeat_row", "summary", "unnest",
    }
)  # fmt: skip
"""DuckDB's own table functions that only read the data or describe it; the database's macros are added."""

TYPES_REFUSED: Final = frozenset({"AGGREGATE_STATE", "BIGNUM", "GEOMETRY", "VARIANT", "VARINT"})
"""No column has them. A deeply nested document cast to VARIANT overflows the stack and ends the process; a
million digits cast to BIGNUM run for minutes after their interrupt (DuckDB 2.0.0)."""
OBJECTS_REFUSED: Final = frozenset({"duckdb_databases", "duckdb_logs", "pg_settings", "pragma_database_list"})
"""DuckDB's views that describe the server."""

_HINT: Final = "send one SELECT; tables and views are in docs/schema.md and docs/sql.md"
_NOT_THE_TEXTS_FAULT: Final = (duckdb.OutOfMemoryException, duckdb.InterruptException)
_EXPLAIN: Final = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)
_QUERY_NODES: Final = frozenset(
    {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "STATEMENT_NODE"}
)


def check_statement(cursor: duckdb.DuckDBPyConnection, sql: str, catalog: Catalog) -> None:
    """Refuses SQL that is not one statement reading the database's tables, views and macros.

    Raises:
        RankmemError: INVALID if it does not parse, DENIED if it does more than read.
    """
    if len(sql.encode()) > SQL_BYTES_MAX:
        raise RankmemError(
            Code.INVALID, f"the statement has more than {SQL_BYTES_MAX} bytes", "send a shorter one"
        )
    try:
        statements = cursor.extract_statements(sql)
    except _NOT_THE_TEXTS_FAULT:
        raise
    except duckdb.Error as exc:
        raise RankmemError(Code.INVALID, f"the SQL does not parse: {exc}") from exc
    if len(statements) != 1:
        raise RankmemError(Code.DENIED, f"{len(statements)} statements were sent, one is allowed", _HINT)
    text, kind = statements[0].query, type_of(statements[0])
    if kind == duckdb.StatementType.EXPLAIN:
        text = _EXPLAIN.sub("", text, count=1)
    elif kind == duckdb.StatementType.MULTI:
        # A first statement reads its values, and DuckDB gives no syntax tree of such a pair to check.
        raise RankmemError(
            Code.DENIED,
            "PIVOT without its values is two statements, and one that cannot be checked",
            "name them: PIVOT … ON column IN ('a', 'b') USING …; on a file it runs as it is",
        )
    elif kind != duckdb.StatementType.SELECT:
        raise RankmemError(Code.DENIED, f"{name_of(kind)} is not allowed, only SELECT", _HINT)
    tree = _parsed(cursor, text)
    tables = {id(node["function"]) for node in _nodes(tree) if node.get("type") == "TABLE_FUNCTION"}
    for node in _nodes(tree):
        _check_node(node, catalog)
        if node.get("function_name"):
            check_call(node, catalog, in_from=id(node) in tables)
    check_size(tree, catalog)


def type_of(statement: duckdb.Statement) -> duckdb.StatementType | None:
    """The statement's kind; None where DuckDB's Python has no name for it, as for UPDATE EXTENSIONS
    (2.0.0: "29 is not a valid StatementType")."""
    try:
        return statement.type
    except ValueError:
        return None


def name_of(kind: duckdb.StatementType | None) -> str:
    """The name of the kind, for a message."""
    return "this kind of statement" if kind is None else str(kind.name)


def _parsed(cursor: duckdb.DuckDBPyConnection, text: str) -> Any:
    """DuckDB's own syntax tree of a SELECT."""
    try:
        # All rows: an unfinished result would block the cursor.
        ((serialized,),) = cursor.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
        tree = json.loads(serialized)
    except _NOT_THE_TEXTS_FAULT:
        raise
    except (duckdb.Error, RecursionError, ValueError) as exc:
        raise RankmemError(Code.DENIED, f"the statement cannot be checked: {exc}", _HINT) from exc
    if tree["error"]:
        raise RankmemError(
            Code.DENIED, f"the statement cannot be checked: {tree.get('error_message')}", _HINT
        )
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of the tree, without recursion: the client chooses its depth."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _check_node(node: dict[str, Any], catalog: Catalog) -> None:
    kind = str(node.get("type", ""))
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS and name not in catalog.own_table_macros:
            raise RankmemError(Code.DENIED, f"the table function {name} is not allowed", _HINT)
    elif kind == "TYPE" and str(node.get("type_name")).upper() in TYPES_REFUSED:
        raise RankmemError(Code.DENIED, f"the type {node['type_name']} is not allowed", "cast to VARCHAR")
    elif kind in ("BASE_TABLE", "SHOW_REF") and str(node.get("table_name")).lower() in OBJECTS_REFUSED:
        raise RankmemError(Code.DENIED, f"{node['table_name']} reveals the server, not the data", _HINT)
    elif kind == "SHOW_REF" and node.get("show_type") == "SHOW":
        raise RankmemError(
            Code.DENIED,
            "SHOW with a name is not allowed: it reveals settings, too",
            f"DESCRIBE {node.get('table_name')} shows a table",
        )
    elif kind.endswith("_NODE") and kind not in _QUERY_NODES:
        raise RankmemError(
            Code.DENIED, f"{kind.removesuffix('_NODE').removesuffix('_QUERY')} is not allowed", _HINT
        )
