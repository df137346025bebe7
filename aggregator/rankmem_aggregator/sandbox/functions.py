"""Checks each function call of a client's SQL: it must be on the list, and its counts small numbers.

Stage: query, in the sandbox. In: a FUNCTION node of DuckDB's syntax tree; out: nothing, or a refusal.
Memory that a query takes between two of DuckDB's checks is not counted, and it cannot be interrupted there
(measured, 2.0.0: ``repeat('x', 1000000000)`` takes 2 GiB beyond a memory limit of 256 MiB, ``levenshtein`` of
two texts of 100 KB runs for minutes after its interrupt). So functions whose result grows with a number are
bounded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.sandbox.catalog import Catalog
from rankmem_aggregator.sandbox.function_list import allowed, why_refused
from rankmem_protos.errors import Code, RankmemError

TEXT_COUNT_MAX: Final = 10_000
"""Characters that repeat, lpad and rpad may make of one."""
LIST_COUNT_MAX: Final = 100_000
"""Elements that range, generate_series and list_resize may make; in FROM, range has no such limit."""

_COUNTED: Final[dict[str, tuple[int, int]]] = {
    "repeat": (1, TEXT_COUNT_MAX),
    "lpad": (1, TEXT_COUNT_MAX),
    "rpad": (1, TEXT_COUNT_MAX),
    "bitstring": (1, TEXT_COUNT_MAX),
    "list_resize": (1, LIST_COUNT_MAX),
    "array_resize": (1, LIST_COUNT_MAX),
    "reservoir_quantile": (2, LIST_COUNT_MAX),
    "equi_width_bins": (2, LIST_COUNT_MAX),
}
"""The position of the count among the arguments, and its maximum."""
_BY_NAME: Final = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})
"""These call the aggregate that their second argument names."""
_RANGES: Final = frozenset({"range", "generate_series"})
_BITS: Final = "bitstring_agg"
"""Its second and third argument are the ends of a range, with one bit per number."""
_FORMATS: Final = frozenset({"printf", "format"})
_SHAPES: Final = frozenset({"json_transform", "json_transform_strict", "from_json", "from_json_strict"})
"""Their second argument is the type of the result."""
SHAPE_CHARS_MAX: Final = 1000
"""Of such a type; one that is nested 10,000 deep is planned for minutes, at 4 GiB."""
_CHECKED: Final = frozenset({*_COUNTED, *_BY_NAME, *_RANGES, *_FORMATS, *_SHAPES, _BITS})
"""Functions whose arguments are checked by position: named ones could stand in any order."""
_WIDE: Final = re.compile(r"\d{5}|\*|\{[^{}]*\{")
"""In a format: a width of five digits, or one that is an argument."""


def check_call(node: Mapping[str, Any], catalog: Catalog, *, in_from: bool) -> None:
    """Refuses a call of a function that is not allowed, or with arguments out of bounds.

    Args:
        node: of the syntax tree, with ``function_name`` and ``arguments``.
        catalog: of the database.
        in_from: it is a table in FROM: its name is checked elsewhere, its rows come one vector at a time.

    Raises:
        RankmemError: DENIED, with the function and what would be allowed; INVALID if it does not exist.
    """
    name = str(node["function_name"]).lower()
    why = why_refused(name)
    if why is not None:
        raise RankmemError(Code.DENIED, f"the function {name} is not allowed: {why}", "leave it out")
    if not (in_from or name in allowed() or name in catalog.own_scalar_macros):
        raise _unlisted(name, catalog)
    entries = node.get("arguments") or ()
    if name in _CHECKED and any(entry.get("name") for entry in entries):
        raise RankmemError(
            Code.DENIED, f"{name} must be given its arguments in their order", "leave out their names"
        )
    arguments: Sequence[Any] = [entry.get("expression") for entry in entries]
    if name in _BY_NAME and len(arguments) > 1:
        name, arguments = _named(name, arguments)
    _check_arguments(name, arguments, in_from=in_from)


def _unlisted(name: str, catalog: Catalog) -> RankmemError:
    if name in catalog.functions:
        return RankmemError(
            Code.DENIED, f"the function {name} is not on the list of those that are allowed", "leave it out"
        )
    near = difflib.get_close_matches(name, allowed() | catalog.own_scalar_macros)
    hint = f"perhaps {' or '.join(near)}" if near else "docs/sql.md shows how to ask"
    return RankmemError(Code.INVALID, f"there is no function {name}", hint)


def _check_arguments(name: str, arguments: Sequence[Any], *, in_from: bool) -> None:
    if name in _COUNTED:
        _check_count(name, arguments, *_COUNTED[name])
    elif name in _RANGES and not in_from:
        _check_range(name, arguments)
    elif name == _BITS:
        _check_range(name, arguments[1:])
    elif name in _FORMATS:
        _check_format(name, arguments)
    elif name in _SHAPES:
        _check_shape(name, arguments)


def _named(caller: str, arguments: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """The name of the aggregate that is called by name, and its arguments."""
    name = _literal(arguments[1], "STRING")
    if name is None or name.lower() not in allowed():
        raise RankmemError(
            Code.DENIED,
            f"{caller} must be given an allowed function's name as a text",
            "write the name itself",
        )
    return name.lower(), [arguments[0], *arguments[2:]]


def _check_shape(name: str, arguments: Sequence[Any]) -> None:
    shape = _literal(arguments[1], "STRING") if len(arguments) > 1 else ""
    if shape is None or len(shape) > SHAPE_CHARS_MAX:
        raise RankmemError(
            Code.DENIED,
            f"{name} must be given its structure as a text of at most {SHAPE_CHARS_MAX} characters",
            "write the structure itself",
        )


def _check_count(name: str, arguments: Sequence[Any], position: int, most: int) -> None:
    count = _whole_number(arguments[position]) if len(arguments) > position else 0
    if count is None or count > most:
        raise RankmemError(
            Code.DENIED,
            f"{name} must be given a number of at most {most} as its count",
            "write the number itself; a column or a parameter could have any value",
        )


def _check_range(name: str, arguments: Sequence[Any]) -> None:
    bounds = [_whole_number(argument) for argument in arguments]
    if any(bound is None or abs(bound) > LIST_COUNT_MAX for bound in bounds):
        raise RankmemError(
            Code.DENIED,
            f"{name} as a list must be given numbers of at most {LIST_COUNT_MAX}",
            f"as a table it has no limit: FROM {name}(…)",
        )


def _check_format(name: str, arguments: Sequence[Any]) -> None:
    form = _literal(arguments[0], "STRING") if arguments else ""
    if form is None or _WIDE.search(form):
        raise RankmemError(
            Code.DENIED,
            f"{name} must be given its format as a text, with widths of at most four digits",
            "write the format itself",
        )


def _whole_number(node: Any) -> int | None:
    text = _literal(node, "INTEGER")
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _literal(node: Any, kind: str) -> str | None:
    """The text of a constant; None for anything else."""
    if not isinstance(node, dict) or node.get("type") != "VALUE_CONSTANT":
        return None
    literal = node.get("literal") or {}
    return str(literal.get("text", "")) if literal.get("kind") == kind else None
