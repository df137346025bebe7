"""A device's totals as counters of a trace: as a whole, and by stream and component.

Stage: export. In: a track's events in order, and what was alive before them; out: (counter, time, bytes), a
value a change, or the highest and the last in each bucket of time. The device's totals are those of the
events; a stream's and a component's are added up here: allocated until the free is requested, active until
the block is given back, reserved by segments. Keeps the live blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Emit = Callable[[str, int, int], None]
"""Takes the name of a counter, a time in ns, and bytes."""

_TOTALS: Final = ("requested", "allocated", "active", "reserved")
_CHANGE_OF_SEGMENTS: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}

_Key = int | tuple[int]
"""Of a live block: its address, or its id where none is recorded."""


@dataclass(slots=True)
class _Curve:
    """One counter, and its values of the current bucket that are not written yet."""

    value: int = 0
    written: int | None = None
    bucket: int = -1
    last_ns: int = 0
    most: int = 0
    most_ns: int = 0


@dataclass(slots=True)
class _Block:
    size_bytes: int
    groups: tuple[str, ...]
    awaiting_free: bool


class Counters:
    """The counters of one track.

    Args:
        device: the start of their names.
        emit: takes each value.
        groups: which of ``stream`` and ``component`` get counters: those of which there are several.
        bucket_ns: of each such bucket the highest and the last value stay; 0: all.
    """

    def __init__(self, device: str, emit: Emit, groups: Iterable[str], bucket_ns: int = 0) -> None:
        self._device = device
        self._emit = emit
        self._groups = tuple(groups)
        self._bucket_ns = bucket_ns
        self._curves: dict[str, _Curve] = {}
        self._live: dict[_Key | None, _Block] = {}

    def begin(
        self, time_ns: int, held: Iterable[Mapping[str, Any]], segments: Iterable[Mapping[str, Any]]
    ) -> None:
        """Adds what was held before the first event: rows of ``held.sql`` and ``segment_events.sql``."""
        for row in held:
            self._made(time_ns, row, awaiting_free=row["awaiting_free"])
        for row in segments:
            self._segment(time_ns, row)

    def event(self, row: Mapping[str, Any]) -> None:
        """Adds an event, a row of ``events.sql``."""
        time_ns, action = row["time_ns"], row["action"]
        for name in _TOTALS:
            value = row[f"{name}_bytes"]
            if value is not None:
                self._before_first(f"{self._device} {name}", name, row)
                self._set(f"{self._device} {name}", time_ns, value)
        if not self._groups:
            return
        key = _key(row)
        if key is None and action not in _CHANGE_OF_SEGMENTS:
            return
        if action == "alloc":
            self._made(time_ns, row, awaiting_free=False)
        elif action == "free_requested":
            block = self._live.get(key)
            if block is not None and not block.awaiting_free:
                block.awaiting_free = True
                self._change(time_ns, block.groups, "allocated", -block.size_bytes)
        elif action == "free_completed":
            self._gone(time_ns, key)
        else:
            self._segment(time_ns, row)

    def total(self, time_ns: int, requested_bytes: int) -> None:
        """Sets the total of a device without events."""
        self._set(f"{self._device} requested", time_ns, requested_bytes)

    def sample(self, time_ns: int, app_reserved_bytes: int) -> None:
        """Sets the total of the whole process."""
        self._set(f"{self._device} app reserved", time_ns, app_reserved_bytes)

    def end(self) -> None:
        """Emits the remaining values after the last event."""
        for name, curve in self._curves.items():
            self._flush(name, curve)

    def _before_first(self, counter: str, name: str, row: Mapping[str, Any]) -> None:
        """Sets the total before the first event where that is a free: it may be the highest."""
        if name == "requested" and row["action"] == "free_completed" and counter not in self._curves:
            self._set(counter, row["time_ns"], row["requested_bytes"] + (row["size_bytes"] or 0))

    def _made(self, time_ns: int, row: Mapping[str, Any], *, awaiting_free: bool) -> None:
        key = _key(row)
        self._gone(time_ns, key)  # where its free was not recorded
        block = _Block(row["size_bytes"], self._names(row), awaiting_free)
        self._live[key] = block
        self._change(time_ns, block.groups, "active", block.size_bytes)
        if not awaiting_free:
            self._change(time_ns, block.groups, "allocated", block.size_bytes)

    def _gone(self, time_ns: int, key: _Key | None) -> None:
        block = self._live.pop(key, None)
        if block is None:
            return
        self._change(time_ns, block.groups, "active", -block.size_bytes)
        if not block.awaiting_free:
            self._change(time_ns, block.groups, "allocated", -block.size_bytes)

    def _segment(self, time_ns: int, row: Mapping[str, Any]) -> None:
        sign = _CHANGE_OF_SEGMENTS.get(row["action"])
        if sign is not None and self._groups:
            self._change(time_ns, self._names(row), "reserved", sign * (row["size_bytes"] or 0))

    def _names(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        names = []
        if "stream" in self._groups and row["stream"] is not None:
            names.append(f"stream {row['stream']}")
        if "component" in self._groups and row["component"] is not None:
            names.append(row["component"])
        return tuple(names)

    def _change(self, time_ns: int, groups: tuple[str, ...], figure: str, change: int) -> None:
        for group in groups:
            name = f"{self._device} {group} {figure}"
            curve = self._curves.get(name)
            self._set(name, time_ns, max(change + (curve.value if curve else 0), 0))

    def _set(self, name: str, time_ns: int, value: int) -> None:
        curve = self._curves.get(name)
        if curve is None:
            curve = self._curves[name] = _Curve()
        if not self._bucket_ns:
            curve.value = value
            if value != curve.written:
                self._emit(name, time_ns, value)
                curve.written = value
            return
        bucket = time_ns // self._bucket_ns
        if bucket != curve.bucket:
            self._flush(name, curve)
            curve.bucket, curve.most, curve.most_ns = bucket, value, time_ns
        elif value > curve.most:
            curve.most, curve.most_ns = value, time_ns
        curve.value, curve.last_ns = value, time_ns

    def _flush(self, name: str, curve: _Curve) -> None:
        if curve.bucket < 0:
            return
        if curve.most != curve.written:
            self._emit(name, curve.most_ns, curve.most)
            curve.written = curve.most
        if curve.last_ns > curve.most_ns and curve.value != curve.written:
            self._emit(name, curve.last_ns, curve.value)
            curve.written = curve.value
        curve.bucket = -1


def _key(row: Mapping[str, Any]) -> _Key | None:
    if row["address"] is not None:
        return int(row["address"])
    return None if row["allocation_id"] is None else (row["allocation_id"],)
