"""Estimates from its syntax tree how large a statement becomes when it is planned.

Stage: query, in the sandbox. In: the tree; out: nothing, or a refusal. DuckDB's planner inserts the body of
a WITH or a macro wherever it is named and cannot be interrupted meanwhile: 25 lines that each name the one
before twice make 16 million tables, and the thread is lost (seen, 2.0.0). So each name is counted as its body
before the statement is planned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from rankmem_aggregator.sandbox.catalog import Catalog
from rankmem_protos.errors import Code, RankmemError

PARTS_MAX: Final = 256
"""SELECTs and tables of a statement, those behind the names of a WITH counted each time they are named."""
VIEW_PARTS: Final = 4
"""A view of ours counts as so many: 50 of ``allocation`` take 3 s to plan, 200 of ``peak_by_rank`` 15."""
MACRO_PARTS: Final = 16
"""A macro of ours that stands as a table: eight of ``job_peak`` take 4 s to plan."""
JOINED_MAX: Final = 128
"""Tables in one FROM: planned in 1.6 s. The effort grows with the fourth power, 250 take half a minute."""
NODES_MAX: Final = 100_000
"""Nodes of the syntax tree, the arguments of a macro counted as often as it may name them."""
MACRO_FACTOR: Final = 3
"""So often a macro names an argument at most (``array_pop_back`` names its own twice)."""


def check_size(tree: Any, catalog: Catalog) -> None:
    """Refuses a statement whose plan would be too large.

    Args:
        tree: its syntax tree, as DuckDB gives it.
        catalog: of the database, whose macros and views are planned where they are named.

    Raises:
        RankmemError: DENIED, with the number and the limit.
    """
    try:
        parts = _parts(tree, {}, catalog)
        nodes = _nodes(tree, catalog.scalar_macros)
        joined = _most_joined(tree)
    except RecursionError as exc:
        raise RankmemError(Code.DENIED, "the statement is nested too deeply", "write it flatter") from exc
    if parts > PARTS_MAX:
        raise RankmemError(
            Code.DENIED,
            f"the statement comes to {parts} SELECTs and tables, at most {PARTS_MAX} are planned",
            "name each WITH less often, or ask in several statements",
        )
    if joined > JOINED_MAX:
        raise RankmemError(
            Code.DENIED,
            f"the statement joins {joined} tables in one FROM, at most {JOINED_MAX} are planned",
            "ask in several statements",
        )
    if nodes > NODES_MAX:
        raise RankmemError(
            Code.DENIED,
            f"the statement comes to {nodes} expressions, at most {NODES_MAX} are planned",
            "nest macros less deeply, or ask in several statements",
        )


def _parts(node: Any, scope: Mapping[str, int], catalog: Catalog) -> int:
    """SELECTs and tables below the node; names of a WITH count as their bodies."""
    if isinstance(node, list):
        return sum(_parts(item, scope, catalog) for item in node)
    if not isinstance(node, dict):
        return 0
    kind = node.get("type")
    if kind == "BASE_TABLE":
        name = str(node.get("table_name")).lower()
        alone = VIEW_PARTS if name in catalog.own_views else 1
        return alone if node.get("schema_name") else scope.get(name, alone)
    entries = (node.get("cte_map") or {}).get("map") or ()
    if entries:
        scope = dict(scope)
        for entry in entries:
            name = str(entry["key"]).lower()
            # Its own name within it is the recursion: one table.
            scope[name] = _parts(entry["value"], {**scope, name: 1}, catalog)
    below = sum(_parts(value, scope, catalog) for key, value in node.items() if key != "cte_map")
    unused = sum(scope[str(entry["key"]).lower()] for entry in entries)
    if kind == "TABLE_FUNCTION":
        return below + (MACRO_PARTS if _called(node["function"]) in catalog.own_table_macros else 1)
    return below + unused + (kind == "SELECT_NODE")


def _most_joined(tree: Any) -> int:
    """Tables of the FROM that joins the most."""
    most, waiting = 0, [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("type") == "SELECT_NODE":
                most = max(most, _joined(node.get("from_table")))
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return most


def _joined(node: Any) -> int:
    if isinstance(node, dict) and node.get("type") == "JOIN":
        return _joined(node.get("left")) + _joined(node.get("right"))
    return 1


def _nodes(node: Any, macros: Collection[str]) -> int:
    if isinstance(node, list):
        return sum(_nodes(item, macros) for item in node)
    if not isinstance(node, dict):
        return 0
    below = sum(_nodes(value, macros) for value in node.values())
    if node.get("type") == "FUNCTION" and _called(node) in macros:
        return 1 + MACRO_FACTOR * below
    return 1 + below


def _called(node: Mapping[str, Any]) -> str:
    return str(node.get("function_name")).lower()
