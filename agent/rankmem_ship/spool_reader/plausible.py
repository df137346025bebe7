"""Which committed records cannot be what a writer wrote: a disk or a memory gave other bytes back.

Stage: spool, reading side, between the mapped segment and the reader of records. In: records whose marks are
right; out: a mask. A record that fails here would stop the pairing of all ranks of the host, or be refused by
the aggregator with everything behind it, so the reader makes a hole of it that names the reason. 0.03 CPU
seconds a million events. A pure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import (
    FIELDS,
    NO_PHASE,
    RECORDED_DETAILS,
    UNKNOWN,
    Action,
    Category,
    Course,
    DeviceType,
    Kind,
    MarkerKind,
    Missing,
    Outcome,
    Phase,
    Value,
)
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_ship.spool_reader.segments import Array, named

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

_MOST: Final[Mapping[Value, int]] = {
    Value.NUMBER: NUMBER_MAX,
    Value.UPTIME_NS: UPTIME_NS_MAX,
    Value.CLOCK_NS: CLOCK_NS_MAX,
    Value.BYTES: SIZE_BYTES_MAX,
    Value.STRING_ID: STRING_ID_MAX,
    Value.THREAD: THREAD_MAX,
}
"""The highest value of a field by what it stands for; others may be anything."""
_ACTIONS: Final[Mapping[Kind, tuple[int, ...]]] = {
    Kind.OFF: tuple(Missing),
    Kind.EVENT: tuple(Action),
    Kind.PREEXISTING: (Action.ALLOC, Action.FREE_REQUESTED, Action.SEGMENT_ALLOC),
    Kind.CALL_BEGIN: (*Phase, NO_PHASE),
    Kind.MARKER_BEGIN: tuple(MarkerKind),
    Kind.TAG: tuple(Category),
    Kind.DETAIL: tuple(Outcome),
    Kind.PART: tuple(Course),
}
_UNKNOWN_IN: Final = (Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE, Kind.LOST, Kind.CALL_END, Kind.CALL_FORWARD,
                     Kind.PART)  # fmt: skip
_OF_DEVICES: Final = (Kind.EVENT, Kind.PREEXISTING, Kind.COUNTERS, Kind.PEAKS, Kind.SAMPLE, Kind.TAG,
                      Kind.DEVICE, Kind.WEIGHT, Kind.ROUNDING, Kind.COMMUNICATOR)  # fmt: skip
_ALL: Final = np.uint64(2**64 - 1)


def implausible(records: Array) -> Array:
    """True for each record that no writer wrote."""
    kinds = records["kind"]
    wrong: Array = ~_PAIRS["action"][kinds, records["action"]]
    wrong |= ~_PAIRS["device_type"][kinds, records["device_type"]]
    wrong |= records["time_ns"] > UPTIME_NS_MAX
    wrong |= records["call_id"] > NUMBER_MAX
    wrong |= records[_TEXT_SLOT] > STRING_ID_MAX
    details = np.flatnonzero(kinds == Kind.DETAIL)  # few
    wrong[details] |= ~np.isin(named(records[details], Kind.DETAIL)["detail"], RECORDED_DETAILS)
    for slot, most in _MOST_IN.items():
        values = records[slot]
        large = np.flatnonzero(values > most.min())  # few, but for addresses
        if len(large):
            beyond = values[large] > most[kinds[large]]
            if slot == _SIZE_SLOT:
                beyond &= ~_asked_in_vain(records[large])
            unknown = _MAY_BE_UNKNOWN[kinds[large]] & (values[large] == UNKNOWN)
            wrong[large] |= beyond & ~unknown
    return wrong


def _asked_in_vain(records: Array) -> Array:
    """Whether a size is that of a request which failed: that may be any number."""
    failed: Array = (records["kind"] == Kind.EVENT) & (records["action"] == Action.OOM)
    return failed & (named(records, Kind.EVENT)["size_bytes"] <= NUMBER_MAX)


def _pairs(allowed: Mapping[Kind, tuple[int, ...]]) -> Array:
    """By kind and value, whether they go together; any value where a kind is not named."""
    table = np.zeros((256, 256), np.bool_)
    for kind in Kind:
        table[kind, list(allowed.get(kind, range(256)))] = True
    return table


def _most_in(slot: str) -> Array:
    """The highest value of a slot by kind."""
    table = np.full(256, _ALL)
    for kind, fields in FIELDS.items():
        for field in fields.values():
            if field.name == slot and field.value in _MOST:
                table[kind] = _MOST[field.value]
    return table


_PAIRS: Final = {
    "action": _pairs(_ACTIONS),
    "device_type": _pairs({kind: tuple(DeviceType) for kind in _OF_DEVICES}),
}
_SIZE_SLOT: Final = FIELDS[Kind.EVENT]["size_bytes"].name
_TEXT_SLOT: Final = FIELDS[Kind.EVENT]["stack_id"].name
"""That of strings and stacks in every kind that has them."""
_MOST_IN: Final = {slot: _most_in(slot) for slot in ("a", "b", "c", "d")}
_MAY_BE_UNKNOWN: Final = np.isin(np.arange(256), _UNKNOWN_IN)
