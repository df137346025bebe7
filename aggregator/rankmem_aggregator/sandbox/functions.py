"""Scalar functions that a client may not call, and those whose counts must be small numbers.

Stage: query, beside ``confine``. In: a FUNCTION node of DuckDB's syntax tree; out: nothing, or a refusal.
What a query builds between two of DuckDB's looks at its limits is neither counted nor interrupted (measured,
2.0.0: ``repeat('x', 1000000000)`` takes 2 GiB beside a memory limit of 256 MiB, ``levenshtein`` of two texts
of 100 KB runs for minutes after its interrupt). So the functions that do it with a number are held short.
Others end the process (``json_contains`` of a document nested 200,000 deep overflows the stack) or the
instance (an InternalException is DuckDB's word for a defect of its own, after which it answers nothing).
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
    **dict.fromkeys(("json_contains", "json_group_structure"), "a deeply nested document ends the database"),
    **dict.fromkeys(("is distinct from", "is not distinct from"), "as an operator its types are checked"),
    **dict.fromkeys(("make_type", "cast_to_type"), "it names types unseen"),
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
PREFIXES_REFUSED: Final = {"__internal": "it is internal", "variant_": "no column is a VARIANT"}
"""DuckDB's own for its optimizer, which trust their arguments; and what makes a type that is refused."""

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
"""Which argument is the count, and the largest."""
_BY_NAME: Final = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})
"""They call the aggregate whose name is their second argument."""
_RANGES: Final = frozenset({"range", "generate_series"})
_BITS: Final = "bitstring_agg"
"""Its second and third argument are the ends of a range, a bit for each number between."""
_FORMATS: Final = frozenset({"printf", "format"})
_SHAPES: Final = frozenset({"json_transform", "json_transform_strict", "from_json", "from_json_strict"})
"""Their second argument is the type that they make."""
SHAPE_CHARS_MAX: Final = 1000
"""Of such a type; one that is nested 10,000 deep is planned for minutes, at 4 GiB."""
_CHECKED: Final = frozenset({*_COUNTED, *_BY_NAME, *_RANGES, *_FORMATS, *_SHAPES, _BITS})
"""Whose arguments are looked at by their place: with names they may stand in any order."""
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
    by_prefix = (why for prefix, why in PREFIXES_REFUSED.items() if name.startswith(prefix))
    why = REFUSED.get(name) or next(by_prefix, None)
    if why is not None:
        raise RankmemError(Code.DENIED, f"the function {name} is not allowed: {why}", "leave it out")
    entries = node.get("arguments") or ()
    if name in _CHECKED and any(entry.get("name") for entry in entries):
        raise RankmemError(
            Code.DENIED, f"{name} must be given its arguments in their order", "leave out their names"
        )
    arguments: Sequence[Any] = [entry.get("expression") for entry in entries]
    if name in _BY_NAME and len(arguments) > 1:
        name, arguments = _named(name, arguments)
    _check_arguments(name, arguments, in_from=in_from)


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
    """The aggregate that is called by its name, and what it is given."""
    name = _literal(arguments[1], "STRING")
    if name is None or name.lower() in REFUSED:
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
