"""What is picked: groups, frames and blocks that filter a panel, from a link to a statement.

Stage: page, in the thread of a request. In: ``kind:value;kind:value``, values percent-encoded, as
``static/selection.js`` writes them; out: the JSON text that the macro ``is_picked`` takes. A panel's route
declares its parameter as ``parameter(PICK, "…", default=None)`` and passes on what is meant by it:
``reading.show(…, pick=picked(reading, asked.pick))``; its statement has ``is_picked($pick::VARCHAR, b)``.
"""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import unquote

from rankmem_aggregator.page.parameters import Read
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.sql import page_text

KINDS: Final = (
    "category",
    "operator",
    "module",
    "within",
    "line",
    "frame",
    "phase",
    "stream",
    "component",
    "step",
    "annotation",
    "stack",
    "block",
)
"""``within``: a module with all below it; ``frame``: of the stack, as ``file:line function``."""
NUMBERS: Final = ("stack", "block")
NO_STACK: Final = ("", "before the recording")
"""What stands for the line of a block without a stack, as in the macro ``group_text``."""
NONE: Final = "none"
"""An origin that no block has."""
PICKS_MAX: Final = 64
"""Groups of a selection: nobody reads more chips."""
PICK_CHARACTERS_MAX: Final = 4096
"""Of a selection: half of what a URL may have."""
VALUE_CHARACTERS_MAX: Final = 1024
"""Of a group's name; the tap cuts at as many."""


def _read(given: str) -> str | None:
    if len(given) > PICK_CHARACTERS_MAX:
        raise ValueError(f"a selection of at most {PICK_CHARACTERS_MAX:,} characters")
    picks: dict[str, list[str]] = {}
    parts = [part for part in given.split(";") if part]
    if len(parts) > PICKS_MAX:
        raise ValueError(f"at most {PICKS_MAX} groups")
    for part in parts:
        kind, colon, encoded = part.partition(":")
        if not colon or kind not in KINDS:
            raise ValueError(f"kind:value, separated by ;, with a kind of {', '.join(KINDS)}")
        values = picks.setdefault(kind, [])
        value = _value(kind, encoded)
        if value not in values:
            values.append(value)
    if len(picks.get("within", ())) > 1:
        raise ValueError("one module with all below it at most")
    return json.dumps(picks, ensure_ascii=False, sort_keys=True) if picks else None


def _value(kind: str, encoded: str) -> str:
    try:
        value = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("values percent-encoded as UTF-8") from None
    if len(value) > VALUE_CHARACTERS_MAX or "\0" in value:
        raise ValueError(f"values of at most {VALUE_CHARACTERS_MAX:,} characters, without NUL")
    if kind in NUMBERS and not value.removeprefix("-").isdecimal():
        raise ValueError(f"a whole number for {kind}")
    return value


PICK: Final[Read] = _read
"""Of a parameter ``pick``: JSON text of the groups by kind; None where nothing is picked."""


def by_category(pick: str | None) -> tuple[str | None, str | None]:
    """What is picked but for categories, and the categories alone, as JSON text: a block may change its."""
    picks: dict[str, list[str]] = {} if pick is None else json.loads(pick)
    categories = picks.pop("category", None)
    return json.dumps(picks) if picks else None, json.dumps({"category": categories}) if categories else None


def picked(reading: Reading, pick: str | None) -> str | None:
    """The same as ``is_picked`` takes it: lines and frames as the stacks that have them."""
    picks: dict[str, list[str]] = {} if pick is None else json.loads(pick)
    if not {"line", "frame"} & set(picks):
        return pick
    lines, frames = (picks.pop(kind, None) for kind in ("line", "frame"))
    rows = reading.queries.sql(
        page_text("picked_stacks"),
        {
            "lines": None if lines is None else json.dumps(lines),
            "frames": None if frames is None else json.dumps(frames),
        },
    )
    missing = [each for each in NO_STACK if all(each in named for named in (lines, frames) if named)]
    picks["origin"] = [*rows["stack_id"].to_pylist(), *missing] or [NONE]
    return json.dumps(picks, ensure_ascii=False, sort_keys=True)
