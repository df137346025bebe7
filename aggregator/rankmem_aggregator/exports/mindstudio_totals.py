"""The totals of each of MindStudio's components after each event, and of PTA and GE together.

Stage: export; pure functions over arrays, except for the totals kept on disk. In: the events of a device in
order, with the device's totals; out: rows of MEMORY_RECORD. An event has the totals of all components of its
device, and its change belongs to its own; the view ``mindstudio.component_total`` does the same in SQL.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = npt.NDArray[Any]

COMPONENT_OF: Final = {"ge": "GE", "mindspore": "MindSpore", "workspace": "WORKSPACE"}
"""MindStudio's name for ours; any other is the framework's allocator."""
FRAMEWORK: Final = "PTA"
WORKSPACE: Final = "WORKSPACE"
GRAPH: Final = "GE"
FIGURES: Final = ("allocated_bytes", "reserved_bytes", "active_bytes")


class Followed(NamedTuple):
    """Totals after each event of a batch, (n, 3) by FIGURES."""

    components: list[str]
    own: Array
    """Of the event's component."""
    together: Array
    """Of all but WORKSPACE."""

    def highest_bytes(self) -> int:
        """The highest allocated bytes of any of them."""
        return int(max(part[:, 0].max(initial=0) for part in (self.own, self.together)))


class Record(NamedTuple):
    """A row of MEMORY_RECORD."""

    component: str
    time_ns: int
    allocated: int | None
    reserved: int | None
    active: int | None
    stream: int | None


class ComponentTotals:
    """The totals of a device's components, batch by batch.

    Args:
        before: the figures of every component of the log before the first event.
    """

    def __init__(self, before: Mapping[str, tuple[int, int, int]]) -> None:
        self._own: dict[str, Array] = {name: np.array(held, np.int64) for name, held in before.items()}
        self._device: Array = sum(self._own.values(), np.zeros(len(FIGURES), np.int64))
        self._stream: int | None = None
        framework = "MindSpore" if "MindSpore" in before else FRAMEWORK
        self._sum = f"{framework}+{GRAPH}" if framework in before else None

    def follow(self, events: pa.RecordBatch) -> Followed:
        """The totals after each event of a batch."""
        device = _device_totals(events)
        change = np.diff(np.concatenate([self._device[None], device]), axis=0)
        components = [COMPONENT_OF.get(name, FRAMEWORK) for name in events.column("component").to_pylist()]
        names = np.array(components)
        own, together = np.zeros_like(device), np.zeros_like(device)
        for name in self._own:
            is_own = names == name
            course = self._own[name] + np.cumsum(np.where(is_own[:, None], change, 0), axis=0)
            own[is_own] = course[is_own]
            if name != WORKSPACE:
                together += course
            if len(course):
                self._own[name] = course[-1]
        if len(device):
            self._device = device[-1]
        return Followed(components, own, together)

    def records(self, events: pa.RecordBatch, followed: Followed) -> Iterator[Record]:
        """The rows of MEMORY_RECORD for a batch: each event, and the sum after it."""
        times, streams = events.column("time_ns").to_pylist(), events.column("stream").to_pylist()
        own, together = followed.own.tolist(), followed.together.tolist()
        for component, time_ns, stream, alone, both in zip(
            followed.components, times, streams, own, together, strict=True
        ):
            yield Record(component, time_ns, alone[0], alone[1], alone[2], stream)
            if self._sum is None or component == WORKSPACE:
                continue
            if component != GRAPH:
                self._stream = stream
            last = self._stream if stream is None else stream
            yield Record(self._sum, time_ns, both[0], both[1], both[2], last)


class TotalsAt:
    """A component's totals after each of its events, kept on disk by the event's position."""

    def __init__(self, folder: Path, seq_first: int, seq_last: int) -> None:
        self._first, self._length = seq_first, seq_last - seq_first + 1
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        # Reserved, as a write into a hole of a mapping on a full disk is a SIGBUS.
        os.posix_fallocate(self._file.fileno(), 0, self._length * len(FIGURES) * 8)
        self._rows = np.memmap(self._file, np.int64, "r+", shape=(self._length, len(FIGURES)))

    def put(self, seq: Array, totals: Array) -> None:
        """Stores the totals after these events."""
        self._rows[seq - self._first] = totals

    def at(self, seq: int | None) -> tuple[int | None, ...]:
        """The totals after an event; None outside of the range."""
        place = -1 if seq is None else seq - self._first
        if not 0 <= place < self._length:
            return (None,) * len(FIGURES)
        return tuple(self._rows[place].tolist())


def with_totals(events: pa.RecordBatch) -> pa.RecordBatch:
    """The events with known totals."""
    return events.filter(events.column("requested_bytes").is_valid())


def _device_totals(events: pa.RecordBatch) -> Array:
    requested = events.column("requested_bytes")
    columns = [pc.coalesce(events.column(name), requested) for name in FIGURES]
    return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1).astype(np.int64)
