"""A statement with its parameters filled in, as a user can paste it into ``rankmem sql``. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rankmem_aggregator.query.types import Value

_PARTS: Final = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\$(\w+)")
"""Comments and texts, which hold no parameters, and parameters."""
_HEAD: Final = re.compile(r"\A(?:--[^\n]*\n)+")


def as_sql(statement: str, parameters: Mapping[str, Value]) -> str:
    """The statement without its head, each ``$name`` replaced by its value as a literal."""

    def literal(found: re.Match[str]) -> str:
        name = found.group(1)
        return found.group(0) if name is None else _literal(parameters[name])

    return _PARTS.sub(literal, _HEAD.sub("", statement)).strip().removesuffix(";")


def named_in(statement: str, parameters: Mapping[str, Value]) -> dict[str, Value]:
    """Those of the parameters that the statement names."""
    names = {name for name in _PARTS.findall(_HEAD.sub("", statement)) if name}
    return {name: value for name, value in parameters.items() if name in names}


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"({value!r})" if value < 0 else repr(value)
    return "'" + value.replace("'", "''") + "'"
