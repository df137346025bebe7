"""The calls of a Kineto trace as records: those with memory events, and those that made autograd's nodes.

Stage: readers, part of ``log``; the process of ``rankmem import``. In: the trace's columns and its
memory events; out: CALL_BEGIN, CALL_FORWARD and CALL_END records, and the call of each event. A backward
call is led to its forward call by the flow that torch draws between the two (``fwdbwd``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import NO_PHASE, NO_SEQUENCE, Kind, Phase
from rankmem_imports.kineto.calls import Frames, calls_of, frames_of, names_operator, outermost_around
from rankmem_imports.kineto.scan import STEP, UNKNOWN, Trace
from rankmem_imports.kineto.stacks import Stacks, class_of
from rankmem_imports.replay import MemoryStrings
from rankmem_ship.pairing.state import ABSENT, Array
from rankmem_ship.spool_reader.segments import RECORD_DTYPE

_ENGINE: Final = "autograd::engine::evaluate_function"
_OPTIMIZER: Final = "Optimizer.step#"

BEFORE, AFTER = -1, 2**62
"""Places of markers' begins and of ends among the records of one time."""
SLOTS: Final = 8
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
    is_shared: Array
    """Memory that torch maps: in no total of the allocator."""
    address: Array
    """UNKNOWN in the older form; likewise the totals."""
    allocated: Array
    reserved: Array

    @property
    def change(self) -> Array:
        """Bytes that each adds to the device's total."""
        return np.where(self.is_alloc, self.size, -self.size)


@dataclass(frozen=True, slots=True)
class Placed:
    """Records and where they stand among those of the same time."""

    records: Array
    place: Array


def ranges_of(trace: Trace) -> tuple[Array, Array, list[str]]:
    """Begins, ends and texts of the user's annotations."""
    names = trace.names.all()
    found = trace.annotations
    return (
        found["start"] + trace.base_ns,
        found["end"] + trace.base_ns,
        [names[number] for number in found["name"].tolist()],
    )


def step_ends(trace: Trace) -> tuple[Array, Array]:
    """When each ProfilerStep ended, and its number, in the order of their ends; each number once."""
    _, end, names = ranges_of(trace)
    ended = {
        int(name[len(STEP) :]): int(end[place])
        for place, name in enumerate(names)
        if name.startswith(STEP) and name[len(STEP) :].isdecimal() and len(name) < len(STEP) + 18
    }
    pairs = sorted((at, number) for number, at in ended.items())
    return np.asarray([at for at, _ in pairs], np.int64), np.asarray([n for _, n in pairs], np.int64)


class Calls:
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

    def records(self, strings: MemoryStrings, stacks: Stacks) -> list[Placed]:
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
        modules = stacks.modules_of(start, thread)
        begins["b"] = [strings.intern(".".join(path)) if path else 0 for path in modules]
        place = np.where(self._first_event < len(self._memory.time), self._first_event * SLOTS, BEFORE)
        ends = begins.copy()
        ends["kind"], ends["time_ns"] = Kind.CALL_END, found["end"][self.used] + base
        ends["time_ns"] = np.maximum(ends["time_ns"], begins["time_ns"])
        ends["action"], ends["b"], ends["c"] = 0, NO_SEQUENCE, NO_SEQUENCE
        ends["e"] = self._stacks(stacks)
        self._write_sequences(ends)
        return [
            module_records(modules, self._begin_ns, strings),
            Placed(begins, place),
            self._links(begins, place),
            Placed(ends, np.full(len(ends), AFTER)),
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
        end, number = step_ends(self._trace)
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

    def _links(self, begins: Array, place: Array) -> Placed:
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
        return Placed(links, place[rows])


def module_records(paths: Sequence[tuple[str, ...]], times: Array, strings: MemoryStrings) -> Placed:
    """MODULE of each module of these paths and those around it, once, where it first appears.

    Args:
        paths: as :meth:`Stacks.modules_at` gives them, each with its time.
    """
    first: dict[tuple[str, ...], int] = {}
    for number in np.argsort(times, kind="stable").tolist():
        for depth in range(1, len(paths[number]) + 1):
            first.setdefault(paths[number][:depth], number)
    records = np.zeros(len(first), RECORD_DTYPE)
    records["kind"] = Kind.MODULE
    records["time_ns"] = times[list(first.values())]
    records["a"] = [strings.intern(".".join(path)) for path in first]
    records["e"] = [strings.intern(class_of(path[-1])) for path in first]
    return Placed(records, np.full(len(first), BEFORE))
