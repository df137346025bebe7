"""Which committed records cannot be what a writer wrote: a disk or a memory gave other bytes back.

Stage: spool, reading side, between the mapped segment and whoever takes records. In: records whose marks are
right; out: a mask. A record that fails here would stop the pairing of all ranks of the host, or be refused by
the aggregator with everything behind it, so the reader makes a hole of it that names the reason. 0.03 CPU
seconds a million events. A pure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import (
    NO_PHASE,
    UNKNOWN,
    Action,
    Category,
    DeviceType,
    Kind,
    MarkerKind,
    Missing,
    Phase,
)
from rankmem_ship.spool_reader.segments import Array

NUMBER_MAX: Final = 2**62
"""Of an id or a count: what the aggregator takes."""
UPTIME_NS_MAX: Final = 2**60
"""Of CLOCK_MONOTONIC, which begins with the host: 36 years."""
CLOCK_NS_MAX: Final = 3 * 10**18
"""Of CLOCK_REALTIME: the year 2065. With an uptime added it is still below NUMBER_MAX."""
SIZE_BYTES_MAX: Final = 2**46
"""Of bytes: 64 TiB, more than a device or host has. A sixteenth of what the aggregator takes: totals are
sums."""
THREAD_MAX: Final = 2**31 - 1
"""Of a thread's number: the database's column has 32 bits."""
STRING_ID_MAX: Final = 1 << 22
"""Of a name's or a stack's id: the tap's strings file ends at 64 MiB, and an entry has 24 bytes at least."""

_NUMBERS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "a": (Kind.MARKER_BEGIN, Kind.MARKER_END, Kind.STEP, Kind.END, Kind.LOST),
    "b": (Kind.CALL_END, Kind.CALL_FORWARD),
    "c": (Kind.CALL_BEGIN, Kind.CALL_END),
    "d": (Kind.CALL_BEGIN,),
}
_UPTIMES: Final[Mapping[str, tuple[Kind, ...]]] = {"a": (Kind.CALL_BEGIN, Kind.CALL_END)}
_CLOCKS: Final[Mapping[str, tuple[Kind, ...]]] = {"a": (Kind.CLOCK,)}
_SIZES: Final[Mapping[str, tuple[Kind, ...]]] = {
    "a": (Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE),
    "b": (Kind.EVENT, Kind.PREEXISTING, Kind.TAG, Kind.WEIGHT, Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE),
    "c": (Kind.WEIGHT, Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE),
    "d": (Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE),
}
_STRING_IDS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "a": (Kind.MODULE, Kind.OFF),
    "b": (Kind.CALL_BEGIN, Kind.OFF),
}
_THREADS: Final[Mapping[str, tuple[Kind, ...]]] = {"a": (Kind.CALL_FORWARD,)}
_ACTIONS: Final[Mapping[Kind, tuple[int, ...]]] = {
    Kind.OFF: tuple(Missing),
    Kind.EVENT: tuple(Action),
    Kind.PREEXISTING: (Action.ALLOC, Action.SEGMENT_ALLOC),
    Kind.CALL_BEGIN: (*Phase, NO_PHASE),
    Kind.MARKER_BEGIN: tuple(MarkerKind),
    Kind.TAG: tuple(Category),
}
_UNKNOWN_IN: Final = (Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE, Kind.LOST, Kind.CALL_END, Kind.CALL_FORWARD)
_OF_DEVICES: Final = (Kind.EVENT, Kind.PREEXISTING, Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE, Kind.TAG,
                      Kind.DEVICE, Kind.WEIGHT)  # fmt: skip
_ALL: Final = np.uint64(2**64 - 1)


def implausible(records: Array) -> Array:
    """True for each record that no writer wrote."""
    kinds = records["kind"]
    wrong: Array = ~_PAIRS["action"][kinds, records["action"]]
    wrong |= ~_PAIRS["device_type"][kinds, records["device_type"]]
    wrong |= records["time_ns"] > UPTIME_NS_MAX
    wrong |= records["call_id"] > NUMBER_MAX
    wrong |= records["e"] > STRING_ID_MAX
    for name, most in _MOST.items():
        values = records[name]
        large = np.flatnonzero(values > most.min())  # few, but for addresses
        if len(large):
            beyond = values[large] > most[kinds[large]]
            if name == "b":
                beyond &= ~_asked_in_vain(records[large])
            unknown = _MAY_BE_UNKNOWN[kinds[large]] & (values[large] == UNKNOWN)
            wrong[large] |= beyond & ~unknown
    return wrong


def _asked_in_vain(records: Array) -> Array:
    """Whether a size is that of a request which failed: that may be any number."""
    failed: Array = (records["kind"] == Kind.EVENT) & (records["action"] == Action.OOM)
    return failed & (records["b"] <= NUMBER_MAX)


def _pairs(allowed: Mapping[Kind, tuple[int, ...]]) -> Array:
    """By kind and value, whether they go together; any value where a kind is not named."""
    table = np.zeros((256, 256), np.bool_)
    for kind in Kind:
        table[kind, list(allowed.get(kind, range(256)))] = True
    return table


def _most(name: str) -> Array:
    """The highest value of a field by kind."""
    table = np.full(256, _ALL)
    for kinds, most in (
        (_NUMBERS, NUMBER_MAX),
        (_UPTIMES, UPTIME_NS_MAX),
        (_CLOCKS, CLOCK_NS_MAX),
        (_SIZES, SIZE_BYTES_MAX),
        (_STRING_IDS, STRING_ID_MAX),
        (_THREADS, THREAD_MAX),
    ):
        table[list(kinds.get(name, ()))] = most
    return table


_PAIRS: Final = {
    "action": _pairs(_ACTIONS),
    "device_type": _pairs({kind: tuple(DeviceType) for kind in _OF_DEVICES}),
}
_MOST: Final = {name: _most(name) for name in ("a", "b", "c", "d")}
_MAY_BE_UNKNOWN: Final = np.isin(np.arange(256), _UNKNOWN_IN)
