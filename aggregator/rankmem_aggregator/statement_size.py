"""How large a statement becomes when it is planned, told from its syntax tree.

Stage: query, beside ``confine``. In: the tree; out: nothing, or a refusal. DuckDB's planner puts the body of
a WITH or a macro wherever it is named and cannot be interrupted meanwhile: 25 lines that each name the one
before twice are 16 million tables, and the thread is gone (seen, 2.0.0). So what a name stands for is
counted before it is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from rankmem_protos.errors import Code, RankmemError

PARTS_MAX: Final = 256
"""SELECTs and tables of a statement, those behind the names of a WITH counted each time they are named. 300
tables in one FROM take 6 s to plan."""
NODES_MAX: Final = 100_000
"""Nodes of the syntax tree, the arguments of a macro counted as often as it may name them."""
MACRO_FACTOR: Final = 3
"""So often a macro names an argument at most (``fmod`` names its first twice)."""


def check_size(tree: Any, macros: Callable[[], Collection[str]]) -> None:
    """Refuses a statement that is planned into too much.

    Args:
        tree: DuckDB's syntax tree of it.
        macros: gives the names of scalar macros, lower case; asked only where some function is called.

    Raises:
        RankmemError: DENIED, with the number and the limit.
    """
    try:
        parts = _parts(tree, {})
        nodes = _nodes(tree, macros)
    except RecursionError as exc:
        raise RankmemError(Code.DENIED, "the statement is nested too deeply", "write it flatter") from exc
    if parts > PARTS_MAX:
        raise RankmemError(
            Code.DENIED,
            f"the statement comes to {parts} SELECTs and tables, at most {PARTS_MAX} are planned",
            "name each WITH less often, or ask in several statements",
        )
    if nodes > NODES_MAX:
        raise RankmemError(
            Code.DENIED,
            f"the statement comes to {nodes} expressions, at most {NODES_MAX} are planned",
            "nest macros less deeply, or ask in several statements",
        )


def _parts(node: Any, scope: Mapping[str, int]) -> int:
    """SELECTs and tables below, names of WITH counted as what they stand for."""
    if isinstance(node, list):
        return sum(_parts(item, scope) for item in node)
    if not isinstance(node, dict):
        return 0
    kind = node.get("type")
    if kind == "BASE_TABLE":
        return 1 if node.get("schema_name") else scope.get(str(node.get("table_name")).lower(), 1)
    entries = (node.get("cte_map") or {}).get("map") or ()
    if entries:
        scope = dict(scope)
        for entry in entries:
            name = str(entry["key"]).lower()
            # Its own name within it is the recursion, one table.
            scope[name] = _parts(entry["value"], {**scope, name: 1})
    below = sum(_parts(value, scope) for key, value in node.items() if key != "cte_map")
    unused = sum(scope[str(entry["key"]).lower()] for entry in entries)
    return below + unused + (kind in ("SELECT_NODE", "TABLE_FUNCTION"))


def _nodes(node: Any, macros: Callable[[], Collection[str]]) -> int:
    if isinstance(node, list):
        return sum(_nodes(item, macros) for item in node)
    if not isinstance(node, dict):
        return 0
    below = sum(_nodes(value, macros) for value in node.values())
    if node.get("type") == "FUNCTION" and str(node.get("function_name")).lower() in macros():
        return 1 + MACRO_FACTOR * below
    return 1 + below
