"""The parameters of a request: every one read and bounded once, into a frozen dataclass.

Stage: page, before any question. In: the pairs of a query string; out: the value of a route's dataclass,
whose fields :func:`parameter` declares. An unknown, repeated, malformed or excessive parameter is INVALID,
with its value and what would be accepted; nothing is guessed. Pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from rankmem_protos.bounds import NUMBER_MAX, RANKS_MAX
from rankmem_protos.errors import Code, RankmemError

T = TypeVar("T")
Read = Callable[[str], Any]
"""Turns a parameter's text into its value; raises ValueError, whose text says what is accepted."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_KEY: Final = "rankmem.parameter"
SHOWN_MAX: Final = 60
"""Characters of a refused value in a message."""


def integer(least: int, most: int) -> Read:
    """A whole number within these bounds, both included."""

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least:,} to {most:,}")
        return int(text)

    return read


def real(least: float, most: float) -> Read:
    """A number within these bounds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ValueError(f"a number from {least:g} to {most:g}")
        return value

    return read


def choice(options: Iterable[str]) -> Read:
    """One of these words."""
    known = tuple(options)

    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return text

    return read


def text(most: int) -> Read:
    """Any text of at most so many characters, without NUL."""

    def read(given: str) -> str:
        if len(given) > most or "\0" in given:
            raise ValueError(f"a text of at most {most:,} characters, without NUL")
        return given

    return read


def integers(least: int, most: int, *, at_most: int) -> Read:
    """Whole numbers separated by commas, as a tuple."""
    one = integer(least, most)

    def read(given: str) -> tuple[int, ...]:
        parts = given.split(",")
        if len(parts) > at_most:
            raise ValueError(f"at most {at_most} numbers, separated by commas")
        return tuple(one(part) for part in parts)

    return read


def choices(options: Iterable[str]) -> Read:
    """Some of these words separated by commas, as a tuple."""
    one = choice(options)

    def read(given: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one(part) for part in given.split(",")))

    return read


RANK: Final = integer(0, RANKS_MAX)
TIME: Final = integer(-NUMBER_MAX // 2, NUMBER_MAX // 2)
"""ns since the session's start."""
SEQ: Final = integer(-NUMBER_MAX // 2, NUMBER_MAX // 2)
"""A position in a rank's log; negative for what is older than the recording."""
DEVICE: Final = text(64)
DEVICE_TYPE: Final = choice(
    ("cuda", "hip", "npu", "xpu", "mps", "hpu", "gpu", "tpu", "mtia", "cpu", "pinned", "privateuseone")
)
BYTES: Final = integer(0, NUMBER_MAX // 2)


def parameter(read: Read, doc: str, *, name: str = "", default: Any = dataclasses.MISSING) -> Any:
    """A field that a parameter fills.

    Args:
        read: from text to value.
        doc: one line for the reference.
        name: in the query string; empty: the field's name.
        default: where it is absent; MISSING: it must be given.
    """
    return dataclasses.field(default=default, metadata={_KEY: (read, doc, name)})


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """A declared parameter."""

    field: str
    name: str
    read: Read
    doc: str
    required: bool


def declared(kind: type[Any]) -> tuple[Declared, ...]:
    """The parameters of a dataclass, in the order of its fields."""
    found = []
    for field in dataclasses.fields(kind):
        read, doc, name = field.metadata[_KEY]
        found.append(
            Declared(field.name, name or field.name, read, doc, field.default is dataclasses.MISSING)
        )
    return tuple(found)


def read_parameters(kind: type[T], pairs: Sequence[tuple[str, str]]) -> T:
    """The value that a query string means; an empty value is that of an absent parameter.

    Raises:
        RankmemError: INVALID.
    """
    known = {each.name: each for each in declared(kind)}
    values: dict[str, Any] = {}
    for name, given in pairs:
        if name not in known:
            accepted = ", ".join(known) or "none"
            raise RankmemError(
                Code.INVALID, f"unknown parameter {_shown(name)}", f"parameters here: {accepted}"
            )
        each = known[name]
        if each.field in values:
            raise RankmemError(Code.INVALID, f"{name} is given twice", "give it once")
        if given == "":
            continue
        try:
            values[each.field] = each.read(given)
        except ValueError as exc:
            raise RankmemError(Code.INVALID, f"{name}={_shown(given)} cannot be used", str(exc)) from exc
    absent = [each.name for each in known.values() if each.required and each.field not in values]
    if absent:
        raise RankmemError(Code.INVALID, f"{absent[0]} is missing", f"give {', '.join(absent)}")
    return kind(**values)


def check_range(from_ns: int | None, until_ns: int | None) -> None:
    """Raises INVALID for a range that ends before it begins."""
    if from_ns is not None and until_ns is not None and until_ns <= from_ns:
        raise RankmemError(
            Code.INVALID, f"the range from {from_ns} to {until_ns} is empty", "give from < to, both in ns"
        )


def _shown(value: str) -> str:
    return repr(value if len(value) <= SHOWN_MAX else value[:SHOWN_MAX] + "…")
