"""Scalar functions that a client may not call, and those whose counts must be small numbers.

Stage: query, beside ``confine``. In: a FUNCTION node of DuckDB's syntax tree; out: nothing, or a refusal.
What a query builds between two of DuckDB's looks at its limits is neither counted nor interrupted (measured,
2.0.0: ``repeat('x', 1000000000)`` takes 2 GiB beside a memory limit of 256 MiB, ``levenshtein`` of two texts
of 100 KB runs for minutes after its interrupt). So the functions that do it with a number are held short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_protos.errors import Code, RankmemError

TEXT_COUNT_MAX: Final = 10_000
"""Characters that repeat, lpad and rpad may make of one."""
LIST_COUNT_MAX: Final = 100_000
"""Elements that range, generate_series and list_resize may make; in FROM, range has no such limit."""

REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(("write_log", "nextval", "setval", "setseed"), "it has effects"),
    **dict.fromkeys(("current_setting", "getenv", "getvariable"), "it tells of the server"),
    **dict.fromkeys(("sleep_ms", "pg_sleep"), "it holds a thread"),
    **dict.fromkeys(
        ("levenshtein", "editdist3", "damerau_levenshtein", "jaro_similarity", "jaro_winkler_similarity"),
        "it cannot be interrupted",
    ),
    **dict.fromkeys(
        ("json_serialize_sql", "json_deserialize_sql", "json_serialize_plan", "json_execute_serialized_sql"),
        "it reads statements unseen",
    ),
    **dict.fromkeys(
        ("to_aggregate_state", "finalize", "combine", "combine_aggr", "variant_bytes_to_variant"),
        "it takes raw memory",
    ),
}  # fmt: skip
"""By name, and why."""
INTERNAL_PREFIX: Final = "__internal"
"""DuckDB's own, for its optimizer; they trust their arguments."""

_COUNTED: Final[dict[str, tuple[int, int]]] = {
    "repeat": (1, TEXT_COUNT_MAX),
    "lpad": (1, TEXT_COUNT_MAX),
    "rpad": (1, TEXT_COUNT_MAX),
    "bitstring": (1, TEXT_COUNT_MAX),
    "list_resize": (1, LIST_COUNT_MAX),
    "array_resize": (1, LIST_COUNT_MAX),
}
"""Which argument is the count, and the largest."""
_RANGES: Final = frozenset({"range", "generate_series"})
_FORMATS: Final = frozenset({"printf", "format"})
_WIDE: Final = re.compile(r"\d{5}|\*|\{[^{}]*\{")
"""In a format: a width of five digits, or one that is an argument."""


def check_call(node: Mapping[str, Any], *, in_from: bool) -> None:
    """Refuses the call if it is outside its bounds.

    Args:
        node: of the syntax tree, with ``function_name`` and ``arguments``.
        in_from: it stands as a table, where its rows come one vector at a time.

    Raises:
        RankmemError: DENIED, with the function and what would be allowed.
    """
    name = str(node["function_name"]).lower()
    why = "it is internal" if name.startswith(INTERNAL_PREFIX) else REFUSED.get(name)
    if why is not None:
        raise RankmemError(Code.DENIED, f"the function {name} is not allowed: {why}", "leave it out")
    arguments = [entry.get("expression") for entry in node.get("arguments") or ()]
    if name in _COUNTED:
        _check_count(name, arguments, *_COUNTED[name])
    elif name in _RANGES and not in_from:
        _check_range(name, arguments)
    elif name in _FORMATS:
        _check_format(name, arguments)


def _check_count(name: str, arguments: Sequence[Any], position: int, most: int) -> None:
    count = _whole_number(arguments[position]) if len(arguments) > position else 0
    if count is None or count > most:
        raise RankmemError(
            Code.DENIED,
            f"{name} must be given a number of at most {most} as its count",
            "write the number itself; a column or a parameter could be any",
        )


def _check_range(name: str, arguments: Sequence[Any]) -> None:
    bounds = [_whole_number(argument) for argument in arguments]
    if any(bound is None or abs(bound) > LIST_COUNT_MAX for bound in bounds):
        raise RankmemError(
            Code.DENIED,
            f"{name} as a list must be given numbers of at most {LIST_COUNT_MAX}",
            f"as a table it may be as long as it likes: FROM {name}(…)",
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
