"""The contents of an Ascend recording as arrays: totals of components, operators' blocks, samples.

Stage: readers; the process of ``rankmem import``. The seam between the two forms of a recording (CSV files,
SQLite) and what is made of them: times in ns since 1970, bytes, UNKNOWN where a cell is empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from rankmem_imports.recording import RankFacts
from rankmem_protos.bounds import NUMBER_MAX, SIZE_BYTES_MAX
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.state import Array

UNKNOWN: Final = -(2**63)
"""An empty cell."""
NAME_CHARS_MAX: Final = 4096
"""Longer names are cut, as in all recordings (``replay.TEXT_BYTES_MAX``)."""
QUOTED_CHARS: Final = 60
"""Of what an error quotes."""
CHUNK_ROWS: Final = 65_536
"""Rows handled at a time: some MB."""

_DEVICE: Final = re.compile(r"[A-Za-z]+(:-?[0-9]{1,9})?|-?[0-9]{1,9}")

RECORD: Final = np.dtype(
    [
        ("time_ns", "<i8"),
        ("allocated", "<i8"),
        ("reserved", "<i8"),
        ("active", "<i8"),
        ("stream", "<i8"),
        ("component", "<i4"),  # place in Names
        ("device", "<i4"),
    ]
)
"""A row of MEMORY_RECORD: a component's totals after one of its actions, or what the process holds (APP)."""

OPERATOR: Final = np.dtype(
    [
        ("allocated_ns", "<i8"),
        ("released_ns", "<i8"),
        ("active_released_ns", "<i8"),
        ("size", "<i8"),  # negative: the release of a block older than the recording
        ("at_alloc", "<i8", (3,)),  # allocated, reserved, active
        ("at_release", "<i8", (3,)),
        ("stream", "<i8"),
        ("name", "<i4"),
        ("device", "<i4"),
    ]
)
"""A row of OP_MEMORY: a block's life."""

SAMPLE: Final = np.dtype([("time_ns", "<i8"), ("app", "<i8"), ("used", "<i8"), ("device", "<i4")])
"""What the process, and what all processes, hold on a device."""

MODULE: Final = np.dtype([("time_ns", "<i8"), ("reserved", "<i8"), ("component", "<i4"), ("device", "<i4")])
"""A row of NPU_MODULE_MEM."""

STATIC: Final = np.dtype(
    [
        ("first", "<i8"),
        ("last", "<i8"),
        ("size", "<i8"),
        ("graph", "<i4"),
        ("model", "<i4"),
        ("name", "<i4"),
        ("device", "<i4"),
    ]
)
"""A row of static_op_mem."""


@dataclass(slots=True)
class Names:
    """Texts by number, in order of appearance; -1 stands for none."""

    texts: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str | None) -> int:
        """Of a text, new ones included."""
        if not text:
            return -1
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text[:NAME_CHARS_MAX])
        return number

    def numbers(self, texts: Iterable[str | None]) -> Array:
        """Of each text."""
        return np.array([self.number(text) for text in texts], np.int32)


@dataclass(slots=True)
class Vocabulary:
    """The names of a recording."""

    components: Names = field(default_factory=Names)
    """As the recording writes them."""
    devices: Names = field(default_factory=Names)
    """As in our column device."""
    texts: Names = field(default_factory=Names)
    """Operators, graphs, models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A row of STEP_TIME."""

    number: int
    started_ns: int
    ended_ns: int


class Source(Protocol):
    """One rank's recording, in either form. Each method reads it anew, as a stream."""

    path: Path
    """For errors."""
    names: Vocabulary
    facts: RankFacts
    """As far as they are known without reading the tables."""

    def records(self) -> Iterator[Array]:
        """RECORD, in the order of the file."""

    def operators(self) -> Iterator[Array]:
        """OPERATOR."""

    def samples(self) -> Iterator[Array]:
        """SAMPLE, without the APP rows of :meth:`records`."""

    def modules(self) -> Iterator[Array]:
        """MODULE."""

    def static_blocks(self) -> Iterator[Array]:
        """STATIC."""

    def steps(self) -> Iterator[Step]:
        """The steps."""

    def device_titles(self) -> dict[str, str]:
        """Product names by device."""


def device_of(text: object) -> str:
    """Our name of a device: npu:0 for ``NPU:0``, ``0`` or 0; npu for -1 (unknown); cpu for ``CPU``.

    Raises:
        ValueError: it is not a device.
    """
    plain = str(text).strip() if text is not None else ""
    if plain in ("", "-1"):
        return "npu"
    if not _DEVICE.fullmatch(plain):
        raise ValueError(f"holds {plain[:QUOTED_CHARS]!r}, not a device")
    kind, colon, index = plain.rpartition(":")
    if not colon:
        return plain.lower() if plain.isalpha() else f"npu:{plain}"
    return f"{kind.lower()}:{index}"


def checked(values: Array, path: Path, what: str) -> Array:
    """The same numbers, int64.

    Raises:
        RankmemError: INVALID where one is absurd.
    """
    known = values[values != UNKNOWN]
    if len(known) and (int(known.max()) > NUMBER_MAX or int(known.min()) < -NUMBER_MAX):
        worst = max(int(known.max()), -int(known.min()))
        raise RankmemError(
            Code.INVALID,
            f"{path}: {what} holds a number of {len(str(worst))} digits",
            "the file is damaged: export or copy it again",
        )
    return values


def with_sizes(rows: Array, path: Path, *names: str) -> Array:
    """The rows.

    Raises:
        RankmemError: INVALID where a size is below 0 or beyond any device's.
    """
    for name in names:
        sizes = rows[name][rows[name] != UNKNOWN]
        if len(sizes) and (int(sizes.min()) < 0 or int(sizes.max()) > SIZE_BYTES_MAX):
            wrong = int(sizes.min()) if int(sizes.min()) < 0 else int(sizes.max())
            raise RankmemError(
                Code.INVALID,
                f"{path}: {name} is {wrong} bytes",
                "the file is damaged: export or copy it again",
            )
    return rows


def as_rows(dtype: np.dtype[Any], columns: dict[str, Array], length: int) -> Array:
    """Columns as one structured array; UNKNOWN (of names -1) in those that are not given."""
    rows = np.empty(length, dtype)
    for name in dtype.names or ():
        if name in columns:
            rows[name] = columns[name]
        else:
            rows[name] = UNKNOWN if dtype[name].base.itemsize == 8 else -1
    return rows
