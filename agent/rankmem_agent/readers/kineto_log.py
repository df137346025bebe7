"""The log of a rank out of a Kineto trace's columns: records in the order of time, for the replay.

Stage: readers; the process of ``rankmem import``. In: a :class:`Trace`; out: spool-format records (calls
that have memory events, or made autograd nodes; markers; steps; events with the allocator's totals) and
what is known of the trace's exactness. Pure but for the texts it interns. Events of one time keep the
file's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.pairing.state import ABSENT, Array
from rankmem_agent.readers.kineto_calls import Frames, calls_of, frames_of, names_operator, outermost_around
from rankmem_agent.readers.kineto_scan import STEP, UNKNOWN, Trace
from rankmem_agent.readers.kineto_stacks import Stacks
from rankmem_agent.readers.replay import MemoryStrings
from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import NO_PHASE, NO_SEQUENCE, Action, DeviceType, Kind, MarkerKind, Phase
from rankmem_agent.spool.segments import RECORD_DTYPE

_ENGINE: Final = "autograd::engine::evaluate_function"
_OPTIMIZER: Final = "Optimizer.step#"
_HOST: Final = int(DeviceType.CPU)
"""Its totals are one: requested, allocated and reserved."""

_BEFORE, _AFTER = -1, 2**62
"""Places of markers' begins and of ends among the records of one time."""
_SLOTS: Final = 8
"""Places that an event has for what stands just before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory events, in the order of time."""

    time: Array
    thread: Array
    device: Array
    """Type and index in one number: type * 256 + index."""
    size: Array
    is_alloc: Array
    address: Array
    """UNKNOWN in the older form; likewise the totals."""
    allocated: Array
    reserved: Array

    @property
    def change(self) -> Array:
        """Bytes that each adds to the device's total."""
        return np.where(self.is_alloc, self.size, -self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the replay takes, and what is known of it."""

    records: Array
    """RECORD_DTYPE, of each kind by itself."""
    order: Array
    """Their places in the order of the log."""
    num_events: int
    contradicted: int
    """Events whose change of the total is not their bytes."""
    unplaced_bytes: int
    """Older than the trace and not freed in it: in the totals, in no block."""
    last_total: dict[int, int]
    """By device the allocator's own figure after the last event, where told."""

    def stretches(self, length: int) -> Iterator[Array]:
        """The records in order, so many at a time."""
        for first in range(0, len(self.order), length):
            yield self.records[self.order[first : first + length]]


def log_of(trace: Trace, strings: MemoryStrings) -> Log:
    """The log of a trace that has memory events; the trace's columns are given up for it.

    Raises:
        ValueError: a device's number is out of range.
    """
    memory = _memory(trace)
    calls = _Calls(trace, memory)
    id_of_event = calls.id_of_event
    parts = [
        *calls.records(strings, Stacks(trace, strings)),
        *_markers(trace, strings),
        _steps(trace, strings),
    ]
    del calls
    trace.forget()
    older, unplaced = _older(memory)
    totals_told = memory.allocated != UNKNOWN
    on_device = totals_told & (memory.device >> 8 != _HOST)
    parts += [older, _segments(memory, on_device), _counters(memory, on_device), _events(memory, id_of_event)]
    contradicted, last_total = _contradicted(memory), _last_totals(memory)
    num_events = len(memory.time)
    del memory, older
    place = np.concatenate([part.place for part in parts])
    records = np.concatenate([part.records for part in parts])
    parts.clear()
    return Log(
        records=records,
        order=np.lexsort((place, records["time_ns"])),
        num_events=num_events,
        contradicted=contradicted,
        unplaced_bytes=unplaced,
        last_total=last_total,
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """Records and where they stand among those of the same time."""

    records: Array
    place: Array


def _memory(trace: Trace) -> Memory:
    """The events by time, equal times in the file's order."""
    found = trace.memory
    order = np.argsort(found["time"], kind="stable")
    kind, index = found["device_type"][order], found["device_index"][order]
    index = np.where(kind == _HOST, 0, index)
    if ((kind < 0) | (kind > 255) | (index < 0) | (index > 255)).any():
        raise ValueError("a device's type or index is outside of 0 to 255")
    change = found["bytes"][order]
    return Memory(
        time=found["time"][order] + trace.base_ns,
        thread=found["thread"][order],
        device=kind * 256 + index,
        size=np.abs(change),
        is_alloc=change >= 0,
        address=found["address"][order],
        allocated=found["allocated"][order],
        reserved=found["reserved"][order],
    )


def _older(memory: Memory) -> tuple[_Placed, int]:
    """Blocks older than the trace: those it frees and did not allocate; and the rest of the first totals."""
    placed = np.flatnonzero(memory.address != UNKNOWN)
    key = np.stack([memory.device[placed], memory.address[placed]])
    _, first = np.unique(key, axis=1, return_index=True)
    freed = np.sort(placed[first])
    freed = freed[~memory.is_alloc[freed]]
    blocks = _records(Kind.PREEXISTING, memory, freed)
    blocks["a"], blocks["b"] = memory.address[freed], memory.size[freed]
    rests = []
    for device in np.unique(memory.device):
        start = int(np.flatnonzero(memory.device == device)[0])
        if memory.allocated[start] == UNKNOWN:
            continue
        known = int(memory.size[freed[memory.device[freed] == device]].sum())
        before = int(memory.allocated[start]) - int(memory.change[start])
        if before > known:
            rests.append((start, before - known))
    lumps = _records(Kind.PREEXISTING, memory, np.asarray([at for at, _ in rests], np.int64))
    lumps["a"], lumps["b"] = layout.UNKNOWN, [size for _, size in rests]
    records = np.concatenate([blocks, lumps])
    records["time_ns"] = memory.time[0]
    return _Placed(records, np.full(len(records), _BEFORE)), sum(size for _, size in rests)


def _segments(memory: Memory, told: Array) -> _Placed:
    """What the allocator holds, as it changes: no event of the trace, so none of the log."""
    parts = []
    for device in np.unique(memory.device[told]):
        at = np.flatnonzero((memory.device == device) & told)
        change = np.diff(memory.reserved[at], prepend=0)
        at, change = at[change != 0], change[change != 0]
        records = _records(Kind.PREEXISTING, memory, at)
        records["action"] = np.where(change > 0, Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)
        records["a"], records["b"] = layout.UNKNOWN, np.abs(change)
        parts.append(_Placed(records, at * _SLOTS + 1))
    return _joined(parts)


def _counters(memory: Memory, told: Array) -> _Placed:
    """The allocator's own figure after each event; it stands before the event, whose row then has it."""
    at = np.flatnonzero(told)
    records = _records(Kind.COUNTERS, memory, at)
    records["a"], records["c"] = memory.allocated[at], memory.reserved[at]
    records["b"] = records["d"] = layout.UNKNOWN
    return _Placed(records, at * _SLOTS + 2)


def _events(memory: Memory, call_ids: Array) -> _Placed:
    at = np.arange(len(memory.time))
    records = _records(Kind.EVENT, memory, at)
    records["action"] = np.where(memory.is_alloc, Action.ALLOC, Action.FREE_COMPLETED)
    records["a"] = np.where(memory.address == UNKNOWN, layout.UNKNOWN, memory.address.view(np.uint64))
    records["b"] = memory.size
    records["call_id"] = call_ids
    return _Placed(records, at * _SLOTS + 3)


def _records(kind: Kind, memory: Memory, at: Array) -> Array:
    """Records of a kind with time, device and thread of these events."""
    records = np.zeros(len(at), RECORD_DTYPE)
    records["kind"] = kind
    records["time_ns"] = memory.time[at]
    records["thread"] = memory.thread[at]
    records["device_type"] = memory.device[at] >> 8
    records["device_index"] = memory.device[at] & 255
    return records


def _contradicted(memory: Memory) -> int:
    """Events between two totals that do not differ by their bytes."""
    wrong = 0
    for device in np.unique(memory.device[memory.allocated != UNKNOWN]):
        at = np.flatnonzero((memory.device == device) & (memory.allocated != UNKNOWN))
        wrong += int((np.diff(memory.allocated[at]) != memory.change[at][1:]).sum())
    return wrong


def _last_totals(memory: Memory) -> dict[int, int]:
    told = memory.allocated != UNKNOWN
    return {
        int(device): int(memory.allocated[np.flatnonzero(memory.device == device)[-1]])
        for device in np.unique(memory.device[told])
    }


def _joined(parts: list[_Placed]) -> _Placed:
    if not parts:
        return _Placed(np.zeros(0, RECORD_DTYPE), np.zeros(0, np.int64))
    return _Placed(np.concatenate([p.records for p in parts]), np.concatenate([p.place for p in parts]))


def _ranges(trace: Trace) -> tuple[Array, Array, list[str]]:
    """Begins, ends and texts of the user's annotations."""
    names = trace.names.all()
    found = trace.annotations
    return (
        found["start"] + trace.base_ns,
        found["end"] + trace.base_ns,
        [names[number] for number in found["name"].tolist()],
    )


def _markers(trace: Trace, strings: MemoryStrings) -> list[_Placed]:
    start, end, names = _ranges(trace)
    order = np.lexsort((-end, start))
    begins, ends = np.zeros(len(start), RECORD_DTYPE), np.zeros(len(start), RECORD_DTYPE)
    for records, kind, time in ((begins, Kind.MARKER_BEGIN, start), (ends, Kind.MARKER_END, end)):
        records["kind"], records["time_ns"] = kind, time[order]
        records["thread"] = trace.annotations["thread"][order]
        records["a"] = np.arange(1, len(order) + 1)
    begins["action"] = MarkerKind.USER_SCOPE
    begins["e"] = [strings.intern(names[place]) for place in order.tolist()]
    inner_first = np.arange(len(order))[::-1]
    return [_Placed(begins, np.full(len(order), _BEFORE)), _Placed(ends, _AFTER + 1 + inner_first)]


def _steps(trace: Trace, strings: MemoryStrings) -> _Placed:
    end, number = _step_ends(trace)
    records = np.zeros(len(end), RECORD_DTYPE)
    records["kind"], records["time_ns"], records["a"] = Kind.STEP, end, number
    records["e"] = strings.intern("ProfilerStep") if len(end) else 0
    return _Placed(records, np.full(len(end), 2 * _AFTER - 1))


def _step_ends(trace: Trace) -> tuple[Array, Array]:
    """When each ProfilerStep ended, and its number, in the order of their ends; each number once."""
    _, end, names = _ranges(trace)
    ended = {
        int(name[len(STEP) :]): int(end[place])
        for place, name in enumerate(names)
        if name.startswith(STEP) and name[len(STEP) :].isdecimal() and len(name) < len(STEP) + 18
    }
    pairs = sorted((at, number) for number, at in ended.items())
    return np.asarray([at for at, _ in pairs], np.int64), np.asarray([n for _, n in pairs], np.int64)


class _Calls:
    """The calls that have memory events or made autograd's nodes, numbered as they begin to matter."""

    def __init__(self, trace: Trace, memory: Memory) -> None:
        self._trace = trace
        found = trace.operators
        self._frames = frames_of(found["start"], found["end"], found["thread"])
        names = trace.names.all()
        self._name_is_operator = np.asarray(
            [isinstance(n, str) and names_operator(n) for n in names], np.bool_
        )
        self._is_engines = np.asarray([str(n).startswith(_ENGINE) for n in names], np.bool_)
        self._names = found["name"][self._frames.number] if len(found) else np.zeros(0, np.int64)
        self._memory = memory
        base = trace.base_ns
        of_event = self._around(memory.time - base, memory.thread)
        self._forward = self._forward_calls()
        used = np.unique(np.concatenate([of_event, self._forward[0]]))
        self.used = used[used != ABSENT]
        """Frames' numbers in the trace."""
        first_event = np.full(len(found), len(memory.time))
        inside = np.flatnonzero(of_event != ABSENT)
        np.minimum.at(first_event, of_event[inside], inside)
        self._first_event = first_event[self.used]
        self._begin_ns = np.where(
            self._first_event < len(memory.time),
            memory.time[np.minimum(self._first_event, len(memory.time) - 1)],
            found["start"][self.used] + base,
        )
        order = np.lexsort((self._first_event, self._begin_ns))
        self._id = np.zeros(len(self.used), np.int64)
        self._id[order] = np.arange(1, len(order) + 1)
        self.id_of_event = self._ids(of_event)

    def records(self, strings: MemoryStrings, stacks: Stacks) -> list[_Placed]:
        """CALL_BEGIN just before the call's first event, CALL_FORWARD behind it, CALL_END at its end."""
        trace, found, base = self._trace, self._trace.operators, self._trace.base_ns
        names = trace.names.all()
        start, thread = found["start"][self.used], found["thread"][self.used]
        begins = np.zeros(len(self.used), RECORD_DTYPE)
        begins["kind"], begins["time_ns"], begins["call_id"] = Kind.CALL_BEGIN, self._begin_ns, self._id
        begins["a"], begins["thread"] = start + base, thread
        begins["c"] = self._steps(start + base)
        begins["e"] = [strings.intern(str(names[n])) for n in found["name"][self.used].tolist()]
        begins["action"] = self._phases(start, thread)
        place = np.where(self._first_event < len(self._memory.time), self._first_event * _SLOTS, _BEFORE)
        ends = begins.copy()
        ends["kind"], ends["time_ns"] = Kind.CALL_END, found["end"][self.used] + base
        ends["time_ns"] = np.maximum(ends["time_ns"], begins["time_ns"])
        ends["action"], ends["b"], ends["c"] = 0, NO_SEQUENCE, NO_SEQUENCE
        ends["e"] = self._stacks(stacks)
        self._write_sequences(ends)
        return [
            _Placed(begins, place),
            self._links(begins, place),
            _Placed(ends, np.full(len(ends), _AFTER)),
        ]

    def _around(self, time: Array, thread: Array) -> Array:
        if not len(self._frames):
            return np.full(len(time), ABSENT)
        return calls_of(self._frames, self._name_is_operator[self._names], time, thread)

    def _ids(self, numbers: Array) -> Array:
        """Call ids of frames' numbers; 0 for ABSENT."""
        if not len(self.used):
            return np.zeros(len(numbers), np.int64)
        near = np.minimum(np.searchsorted(self.used, numbers), len(self.used) - 1)
        return np.where(self.used[near] == numbers, self._id[near], 0)

    def _steps(self, start: Array) -> Array:
        """The step that each call lies in: the next that ends; behind the last, one more."""
        end, number = _step_ends(self._trace)
        if not len(end):
            return np.full(len(start), layout.UNKNOWN, np.uint64)
        after = np.append(number, number[-1] + 1)
        return after[np.searchsorted(end, start)].astype(np.uint64)

    def _phases(self, start: Array, thread: Array) -> Array:
        """Backward within autograd's engine, optimizer within its step, forward where it made nodes."""
        phase = np.full(len(start), NO_PHASE)
        makes_nodes = np.isin(self.used, self._forward[0])
        phase[makes_nodes] = Phase.FORWARD
        phase[outermost_around(self._engine(), start, thread) != ABSENT] = Phase.BACKWARD
        found = self._trace.annotations
        steps = frames_of(found["start"], found["end"], found["thread"])
        is_step = np.asarray([str(n).startswith(_OPTIMIZER) for n in self._trace.names.all()], np.bool_)
        if len(steps):
            steps = steps.picked(is_step[found["name"][steps.number]])
        phase[outermost_around(steps, start, thread) != ABSENT] = Phase.OPTIMIZER
        return phase

    def _engine(self) -> Frames:
        """The engine's frames around a node."""
        return self._frames.picked(self._is_engines[self._names]) if len(self._names) else self._frames

    def _stacks(self, stacks: Stacks) -> Array:
        found = self._trace.operators
        texts = found["call_stack"][self.used].tolist()
        times, threads = found["start"][self.used].tolist(), found["thread"][self.used].tolist()
        ids = [
            stacks.of_text(text) if text != UNKNOWN else stacks.at(time, thread)
            for text, time, thread in zip(texts, times, threads, strict=True)
        ]
        return np.asarray(ids, np.uint32)

    def _forward_calls(self) -> tuple[Array, Array, Array]:
        """Of autograd's flows that have both ends, by thread and time: the forward call (a frame's number, or
        ABSENT), the flow's id, its thread. Their places, from 1, are our sequence numbers."""
        flows = self._trace.flows
        is_start = flows["is_end"] == 0
        has_end = np.isin(flows["id"], flows["id"][~is_start])
        chosen = np.flatnonzero(is_start & has_end)
        chosen = chosen[np.lexsort((flows["time"][chosen], flows["thread"][chosen]))]
        call = self._around(flows["time"][chosen], flows["thread"][chosen])
        return call, flows["id"][chosen], flows["thread"][chosen]

    def _write_sequences(self, ends: Array) -> None:
        """The first and last node that each forward call made; calls of a thread do not overlap."""
        call = self._forward[0]
        place = np.minimum(np.searchsorted(self.used, call), max(len(self.used) - 1, 0))
        for number in np.flatnonzero(call != ABSENT).tolist():
            row = int(place[number])
            if ends["b"][row] == NO_SEQUENCE:
                ends["b"][row] = number + 1
            ends["c"][row] = number + 1
        ends["d"] = (ends["b"] != NO_SEQUENCE).astype(np.uint64)

    def _links(self, begins: Array, place: Array) -> _Placed:
        """CALL_FORWARD of the calls within an engine's frame that a flow leads to."""
        flows, engine = self._trace.flows, self._engine()
        found = self._trace.operators
        is_end = flows["is_end"] == 1
        landed = outermost_around(engine, flows["time"][is_end], flows["thread"][is_end])
        _, ids, threads = self._forward
        number_of_flow = {flow: number for number, flow in enumerate(ids.tolist())}
        number_of_frame: dict[int, int] = {}
        for frame, flow in zip(landed.tolist(), flows["id"][is_end].tolist(), strict=True):
            if frame != ABSENT and flow in number_of_flow:
                number_of_frame.setdefault(frame, number_of_flow[flow])
        around = outermost_around(engine, found["start"][self.used], found["thread"][self.used]).tolist()
        rows = [row for row, frame in enumerate(around) if frame in number_of_frame]
        links = begins[rows].copy()
        numbers = np.asarray([number_of_frame[around[row]] for row in rows], np.int64)
        links["kind"], links["action"], links["c"], links["e"] = Kind.CALL_FORWARD, 0, 0, 0
        links["a"] = threads[numbers] if len(numbers) else 0
        links["b"] = numbers + 1
        return _Placed(links, place[rows])
