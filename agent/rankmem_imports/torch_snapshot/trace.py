"""One device of a memory snapshot as arrays: its trace as records, and the blocks alive before the trace.

Stage: readers; the process of ``rankmem import``. In: the result of ``torch.cuda.memory._snapshot()`` as
plain data. Out: records in the order of the trace, times in nanoseconds; blocks and segments of the
baseline; and the snapshot's state at the end. No type, order or size is trusted.

**Baseline.** Whether a block was alive before the trace follows from the first event at its address: a free
means yes, an alloc no; at an address without events by ``segments``, the state at the end. That is what
running the trace backwards gives (rankmem_agent.tap.snapshot_format, which keeps it for segments, of
which there are few), an array at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rankmem_agent.spool.layout import UNKNOWN, Action, Kind
from rankmem_agent.tap.snapshot_format import (
    ACTION_OF_NAME,
    Block,
    DeviceSnapshot,
    Segment,
    baseline,
    events_of,
    packed_pool,
    ranges_of,
)
from rankmem_agent.tap.snapshot_pools import private_pools
from rankmem_imports.replay import FRAMES_MAX, MemoryStrings
from rankmem_protos.bounds import NUMBER_MAX, SIZE_BYTES_MAX
from rankmem_ship.pairing.state import Array
from rankmem_ship.spool_reader.segments import RECORD_DTYPE

TIME_US_MAX: Final = NUMBER_MAX // 1000
"""In microseconds: the year 2116."""
WITHOUT_TIME_NS: Final = 1_000
"""Events of a recording without times stand this far apart, from 1970 on: in order, and plainly no time."""

ANNOTATE: Final = "annotate"
"""The action of an entry that gives a block alive a text (torch 2.15, ``_annotate_tensor``)."""

_NOT_OURS: Final = 255
_U64_MASK: Final = 2**64 - 1
_OF_SEGMENTS: Final = (
    Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """A device's events."""

    records: Array
    """RECORD_DTYPE, in the allocator's order; times do not decrease."""
    entries: Sequence[dict[str, Any]]
    """Those that became records, one each."""
    has_times: bool
    ignored: Sequence[tuple[int, dict[str, Any]]]
    """Entries whose action is none of the allocator's, each with the number of records before it."""


def trace_of(
    entries: Sequence[dict[str, Any]], device_type: int, device_index: int, segments: Sequence[Segment] = ()
) -> DeviceTrace:
    """The events of a device's trace, without stacks.

    Args:
        segments: those at its end, which tell of private pools where the entries do not.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: an entry is malformed.
    """
    codes = [ACTION_OF_NAME.get(entry["action"], _NOT_OURS) for entry in entries]
    ignored: list[tuple[int, dict[str, Any]]] = []
    if _NOT_OURS in codes:
        kept: list[dict[str, Any]] = []
        for entry, code in zip(entries, codes, strict=True):
            ignored.append((len(kept), entry)) if code == _NOT_OURS else kept.append(entry)
        entries = kept
    action = np.array([code for code in codes if code != _NOT_OURS], np.uint8)
    records = np.zeros(len(entries), RECORD_DTYPE)
    records["kind"], records["action"] = Kind.EVENT, action
    records["device_type"], records["device_index"] = device_type, device_index
    records["a"] = _unsigned([entry.get("addr", 0) for entry in entries])
    records["b"] = _sizes([entry["size"] for entry in entries], action)
    records["c"] = _unsigned([entry["stream"] for entry in entries])
    pools = [entry.get("pool_id") or entry.get("segment_pool_id") for entry in entries]
    if any(pools):
        records["d"] = _pools(pools)
    else:
        places = zip(action.tolist(), records["a"].tolist(), records["b"].tolist(), strict=True)
        for place, pool in private_pools(places, ranges_of(segments)).items():
            records["d"][place] = pool
    for place in np.flatnonzero(action == Action.OOM).tolist():
        free = entries[place].get("device_free")
        records["d"][place] = UNKNOWN if free is None else int(free) & _U64_MASK
        records["a"][place] = 0
    times = [entry.get("time_us") for entry in entries]
    has_times = any(time is not None for time in times)
    records["time_ns"] = _times_ns(times) if has_times else np.arange(1, len(times) + 1) * WITHOUT_TIME_NS
    return DeviceTrace(records=records, entries=entries, has_times=has_times, ignored=ignored)


def blocks_before(device: DeviceSnapshot, trace: DeviceTrace) -> list[Block]:
    """The blocks alive before the trace, by address; with the frames of their making where it has them.

    Args:
        device: the state at the end; its own list of events is not looked at.
        trace: what happened before the end.
    """
    is_block = trace.records["action"] <= Action.FREE_COMPLETED
    own = trace.records[is_block]
    made = set(own["a"][own["action"] == Action.ALLOC].tolist())
    _, first = np.unique(own["a"], return_index=True)
    blocks = {where: block for where, block in device.blocks.items() if where not in made}
    for place in first[own["action"][first] != Action.ALLOC].tolist():
        event = own[place]
        where = int(event["a"])
        if where not in blocks:  # it was freed within the trace; frames there are those of the free
            blocks[where] = Block(where, int(event["b"]), int(event["c"]), int(event["d"]), False, ())
    return [blocks[where] for where in sorted(blocks)]


def segments_before(device: DeviceSnapshot, trace: DeviceTrace) -> tuple[list[Segment], int]:
    """The segments held before the trace, and how many of its events do not fit those at the end."""
    at = np.flatnonzero(np.isin(trace.records["action"], _OF_SEGMENTS))
    state = baseline(
        DeviceSnapshot(
            device_index=device.device_index,
            events=events_of(trace.entries[place] for place in at.tolist()),
            blocks={},
            segments=device.segments,
        )
    )
    segments = sorted(state.segments.values())
    lacking = _lacking_bytes(trace.records[at], sum(segment.size_bytes for segment in segments))
    if lacking:  # the recording contradicts itself: more goes than there was
        segments.append(Segment(0, lacking, 0, 0))
    return segments, state.residue


def _lacking_bytes(moves: Array, held_bytes: int) -> int:
    """By how much less than nothing would be reserved at the lowest."""
    gains = np.isin(moves["action"], (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    course = held_bytes + np.cumsum(np.where(gains, 1, -1) * moves["b"].astype(np.int64))
    if len(course) and int(course.max()) > SIZE_BYTES_MAX:
        raise ValueError("segments of more bytes than any device has")
    return max(-int(course.min()), 0) if len(course) else 0


class StackInterner:
    """The stacks of a snapshot, by the identity of its frames: it repeats them by the million, shared.

    Args:
        strings: where they go. The snapshot must stay as it is while this is in use.
    """

    def __init__(self, strings: MemoryStrings) -> None:
        self._strings = strings
        self._stacks: dict[tuple[int, ...], int] = {}
        self._frames: dict[int, int] = {}

    def stack(self, frames: object) -> int:
        """The id of a stack; 0 for none."""
        if not isinstance(frames, list) or not frames:
            return 0
        if len(frames) > FRAMES_MAX:
            frames = frames[:FRAMES_MAX]
        key = tuple(map(id, frames))
        known = self._stacks.get(key)
        if known is None:
            known = self._strings.make_stack([self._frame(frame) for frame in frames])
            self._stacks[key] = known
        return known

    def set_stacks(self, trace: DeviceTrace) -> None:
        """Sets the stacks of a trace's events; both events of one free share a list."""
        known: dict[int, int] = {}
        stacks = []
        for entry in trace.entries:
            frames = entry.get("frames")
            stack = known.get(id(frames))
            if stack is None:
                stack = known[id(frames)] = self.stack(frames)
            stacks.append(stack)
        trace.records["e"] = stacks

    def _frame(self, frame: dict[str, Any]) -> int:
        known = self._frames.get(id(frame))
        if known is None:
            line = frame.get("line")
            known = self._strings.frame(
                _text(frame.get("filename")), _text(frame.get("name")), line if isinstance(line, int) else 0
            )
            self._frames[id(frame)] = known
        return known


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _unsigned(values: list[Any]) -> Array:
    """Addresses and handles, which some versions write as signed numbers."""
    _check_whole(values)
    try:
        return np.array(values, np.uint64)
    except OverflowError:
        return np.array([int(value) & _U64_MASK for value in values], np.uint64)


def _sizes(values: list[Any], action: Array) -> Array:
    """Bytes of the events; a request that failed may have been for more than there is."""
    _check_whole(values)
    sizes = np.array(values, np.int64)
    wrong = (sizes < 0) | (sizes > np.where(action == Action.OOM, NUMBER_MAX, SIZE_BYTES_MAX))
    if wrong.any():
        raise ValueError(f"an event of {sizes[wrong][0]} bytes")
    return sizes


def _check_whole(values: list[Any]) -> None:
    """Numpy would cut fractions off and read texts."""
    other = set(map(type, values)) - {int}
    if other:
        raise ValueError(f"a number is a {', '.join(sorted(kind.__name__ for kind in other))}")


def _pools(pools: list[Any]) -> Array:
    packed: dict[tuple[int, ...], int] = {}
    found = []
    for pool in pools:
        key = tuple(pool or ())
        if key not in packed:
            packed[key] = packed_pool(key)
        found.append(packed[key])
    return np.array(found, np.uint64)


def _times_ns(times: list[Any]) -> Array:
    """In nanoseconds, not decreasing; an entry without one has that before it."""
    last = next(time for time in times if time is not None)
    filled = [last := time if time is not None else last for time in times] if None in times else times
    _check_whole(filled)
    known = np.array(filled, np.int64)
    if not 0 <= known.min() <= known.max() <= TIME_US_MAX:
        raise ValueError(f"times from {known.min()} to {known.max()} microseconds")
    rising: Array = np.maximum.accumulate(known) * 1_000
    return rising
