"""Checks a JSON document against a JSON schema (draft 7) of the few keywords that speedscope's has.

Stage: tests. In: a schema and a document; out: what is wrong with it, by its place. A keyword that is not
known here is an error, so that nothing is left unchecked. ``speedscope/file-format-schema.json`` and its
``LICENSE`` are from the package speedscope 1.25.0 of npm, as it publishes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

SPEEDSCOPE: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "speedscope" / "file-format-schema.json").read_text("utf-8")
)
"""The schema of its files."""
_TYPES: Final[Mapping[str, Any]] = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "null": type(None),
    "boolean": bool,
}  # fmt: skip
_KNOWN: Final = frozenset(
    ("$schema", "definitions", "title", "$ref", "type", "const", "enum", "properties", "required", "items",
     "anyOf", "additionalProperties")
)  # fmt: skip


def _is(value: Any, kind: str) -> bool:
    # Python's True is an int, JSON's is none.
    return isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")


def faults(schema: Mapping[str, Any], document: Any) -> list[str]:
    """What of the document does not fit the schema; empty where all of it does."""
    return list(_faults(schema, schema, document, "$"))


def _faults(whole: Mapping[str, Any], part: Mapping[str, Any], value: Any, place: str) -> Iterator[str]:
    assert part.keys() <= _KNOWN, f"{place}: keywords {part.keys() - _KNOWN} are not known here"
    if "$ref" in part:
        yield from _faults(whole, whole["definitions"][part["$ref"].rpartition("/")[2]], value, place)
    kind = part.get("type")
    kinds = [kind] if isinstance(kind, str) else kind or []
    if kinds and not any(_is(value, each) for each in kinds):
        yield f"{place} is no {kind}"
        return
    if "const" in part and value != part["const"]:
        yield f"{place} is not {part['const']!r}"
    if "enum" in part and value not in part["enum"]:
        yield f"{place} is none of {part['enum']}"
    if "anyOf" in part:
        tried = [list(_faults(whole, option, value, place)) for option in part["anyOf"]]
        if all(tried):
            yield from min(tried, key=len)
    if isinstance(value, dict):
        yield from (f"{place} has no {name}" for name in part.get("required", ()) if name not in value)
        for name, own in part.get("properties", {}).items():
            if name in value:
                yield from _faults(whole, own, value[name], f"{place}.{name}")
        others = part.get("additionalProperties", True)
        for name in value.keys() - part.get("properties", {}).keys() if others is not True else ():
            if others is False:
                yield f"{place} has an unknown {name}"
            else:
                yield from _faults(whole, others, value[name], f"{place}.{name}")
    if isinstance(value, list) and "items" in part:
        for number, each in enumerate(value):
            yield from _faults(whole, part["items"], each, f"{place}[{number}]")
