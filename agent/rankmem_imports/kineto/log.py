"""The log of a rank from a Kineto trace's columns: records in the order of time, for the replay.

Stage: readers; the process of ``rankmem import``. In: a :class:`Trace`; out: spool-format records (calls
that have memory events, or made autograd nodes; markers; steps; events with the allocator's totals) and
how exact the trace is. Pure but for the texts it interns. Events of one time keep the file's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import Action, DeviceType, Kind, MarkerKind
from rankmem_imports.kineto.blocks import StandIns, with_addresses
from rankmem_imports.kineto.call_records import (
    AFTER,
    BEFORE,
    SLOTS,
    Calls,
    Memory,
    Placed,
    module_records,
    ranges_of,
    step_ends,
)
from rankmem_imports.kineto.scan import UNKNOWN, Trace
from rankmem_imports.kineto.stacks import Stacks
from rankmem_imports.replay import MemoryStrings
from rankmem_ship.pairing.state import Array
from rankmem_ship.spool_reader.segments import RECORD_DTYPE

_HOST: Final = int(DeviceType.CPU)
"""Its requested, allocated and reserved totals are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoLog:
    """The records to replay, and facts on them."""

    records: Array
    """RECORD_DTYPE, grouped by kind."""
    order: Array
    """Their places in the order of the log."""
    num_events: int
    contradicted: int
    """Events whose change of the total is not their bytes."""
    older_bytes: int
    """Held before the trace began."""
    missing_bytes: int
    """Bytes of older blocks that the trace frees beyond its first totals."""
    stand_ins: StandIns
    """In place of addresses that the trace lacks."""
    last_total: dict[int, int]
    """By device the allocator's own figure after the last event, if stated, plus shared memory alive then."""
    num_shared: int
    """Events of shared memory, which the host allocator's totals leave out."""
    modules: dict[int, str]
    """By place in the log the module of an alloc in no call: it is in no record."""

    def slices(self, length: int) -> Iterator[Array]:
        """The records in order, so many at a time."""
        for first in range(0, len(self.order), length):
            yield self.records[self.order[first : first + length]]


def log_of(trace: Trace, strings: MemoryStrings) -> KinetoLog:
    """The log of a trace that has memory events; the trace's columns are freed for it.

    Raises:
        ValueError: a device's number is out of range.
    """
    stacks = Stacks(trace, strings)  # first: it frees the largest columns
    memory, stand_ins = _memory(trace)
    calls = Calls(trace, memory)
    id_of_event = calls.id_of_event
    parts = [
        *calls.records(strings, stacks),
        *_markers(trace, strings),
        _steps(trace, strings),
    ]
    outside = _outside(memory, id_of_event, trace.base_ns, stacks)
    parts.append(module_records(outside.modules, memory.time[outside.at], strings))
    del calls, stacks
    trace.forget()
    older, missing, stand_ins = _older(memory, stand_ins)
    older_bytes = int(older.records["b"].sum())
    has_total = memory.allocated != UNKNOWN
    on_device = has_total & (memory.device >> 8 != _HOST)
    parts += [older, _segments(memory, on_device), _counters(memory, on_device)]
    events = _events(memory, id_of_event)
    events.records["e"][outside.at] = outside.stacks
    parts.append(events)
    contradicted, last_total = _contradicted(memory), _last_totals(memory)
    num_events, num_shared = len(memory.time), int(memory.is_shared.sum())
    del memory, older
    place = np.concatenate([part.place for part in parts])
    records = np.concatenate([part.records for part in parts])
    parts.clear()
    order = np.lexsort((place, records["time_ns"]))
    return KinetoLog(
        records=records,
        order=order,
        num_events=num_events,
        contradicted=contradicted,
        older_bytes=older_bytes,
        missing_bytes=missing,
        stand_ins=stand_ins,
        last_total=last_total,
        num_shared=num_shared,
        modules=_by_place(outside, order, len(records) - num_events, strings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outside:
    """The allocs in no call, such as those of Python's numbers."""

    at: Array
    """Their numbers among the memory events."""
    stacks: list[int]
    modules: list[tuple[str, ...]]


def _outside(memory: Memory, call_ids: Array, base_ns: int, stacks: Stacks) -> _Outside:
    """The Python stacks and modules around the allocs in no call."""
    at = np.flatnonzero((call_ids == 0) & memory.is_alloc)
    times, threads = memory.time[at] - base_ns, memory.thread[at]
    return _Outside(
        at=at,
        stacks=[stacks.at(*pair) for pair in zip(times.tolist(), threads.tolist(), strict=True)],
        modules=stacks.modules_of(times, threads),
    )


def _by_place(outside: _Outside, order: Array, first_event: int, strings: MemoryStrings) -> dict[int, str]:
    """The modules by place in the log; the events stand last among the records."""
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    places = place_of[first_event + outside.at].tolist()
    texts = [strings.text(strings.intern(".".join(path))) or "" for path in outside.modules]
    return {place: text for place, text in zip(places, texts, strict=True) if text}


def _memory(trace: Trace) -> tuple[Memory, StandIns]:
    """The events by time, equal times in the file's order; each with an address, see ``blocks``."""
    found = trace.memory
    order = np.argsort(found["time"], kind="stable")
    kind, index = found["device_type"][order], found["device_index"][order]
    index = np.where(kind == _HOST, 0, index)
    if ((kind < 0) | (kind > 255) | (index < 0) | (index > 255)).any():
        raise ValueError("a device's type or index is outside of 0 to 255")
    change = found["bytes"][order]
    allocated, reserved = found["allocated"][order], found["reserved"][order]
    if ((allocated < UNKNOWN) & (kind != _HOST)).any() or (reserved < UNKNOWN).any():
        raise ValueError("a device's total is below zero")
    address = found["address"][order]
    is_shared = _are_shared(kind == _HOST, change, address, allocated, reserved)
    device = kind * 256 + index
    address, stand_ins = with_addresses(device, np.abs(change), change >= 0, address)
    memory = Memory(
        time=found["time"][order] + trace.base_ns,
        thread=found["thread"][order],
        device=device,
        size=np.abs(change),
        is_alloc=change >= 0,
        is_shared=is_shared,
        address=address,
        allocated=np.where(is_shared, UNKNOWN, allocated),
        reserved=reserved,
    )
    return memory, stand_ins


def _are_shared(is_host: Array, change: Array, address: Array, allocated: Array, reserved: Array) -> Array:
    """Whether each event is of memory that torch maps, such as a DataLoader's batches. They have 0 as the
    allocator's total and their own bytes as reserved, unlike any of the host's allocator
    (aten/src/ATen/MapAllocator.cpp); their frees have 0 for both."""
    shared: Array = is_host & (change > 0) & (allocated == 0) & (reserved == change)
    if not shared.any():
        return shared
    alive: set[int] = set()
    for at in np.flatnonzero(is_host & (allocated == 0)).tolist():
        if shared[at]:
            alive.add(int(address[at]))
        elif change[at] < 0 and int(address[at]) in alive:
            alive.remove(int(address[at]))
            shared[at] = True
    return shared


def _older(memory: Memory, stand_ins: StandIns) -> tuple[Placed, int, StandIns]:
    """Blocks older than the trace: those it frees and did not allocate, and of each device one for the rest
    of its first total, with a stand-in address; and the freed bytes that are in no total."""
    key = np.stack([memory.device, memory.address])
    _, first = np.unique(key, axis=1, return_index=True)
    freed = np.sort(first[~memory.is_alloc[first]])
    blocks = _records(Kind.PREEXISTING, memory, freed)
    blocks["a"], blocks["b"] = memory.address[freed].view(np.uint64), memory.size[freed]
    rests, missing = [], 0
    for device in np.unique(memory.device):
        own = np.flatnonzero((memory.device == device) & ~memory.is_shared)
        stated = np.flatnonzero(memory.allocated[own] != UNKNOWN)
        if not len(stated):
            continue
        upto = own[: stated[0] + 1]
        before = int(memory.allocated[upto[-1]] - memory.change[upto].sum())
        rest = before - int(memory.size[freed[memory.device[freed] == device]].sum())
        missing += max(-rest, 0)
        if rest > 0:
            rests.append((int(upto[0]), rest))
    lumps = _records(Kind.PREEXISTING, memory, np.asarray([at for at, _ in rests], np.int64))
    lumps["a"] = (stand_ins.next - np.arange(len(rests), dtype=np.int64)).view(np.uint64)
    lumps["b"] = [size for _, size in rests]
    records = np.concatenate([blocks, lumps])
    records["time_ns"] = memory.time[0] - 1  # its own instant: a window may begin with a free
    stand_ins = replace(stand_ins, next=stand_ins.next - len(rests))
    return Placed(records, np.full(len(records), BEFORE)), missing, stand_ins


def _segments(memory: Memory, on_device: Array) -> Placed:
    """Changes of the allocator's reserved bytes: not events in the trace, so not in the log."""
    parts = []
    for device in np.unique(memory.device[on_device]):
        at = np.flatnonzero((memory.device == device) & on_device & (memory.reserved != UNKNOWN))
        change = np.diff(memory.reserved[at], prepend=0)
        at, change = at[change != 0], change[change != 0]
        records = _records(Kind.PREEXISTING, memory, at)
        records["action"] = np.where(change > 0, Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)
        records["a"], records["b"] = layout.UNKNOWN, np.abs(change)
        parts.append(Placed(records, at * SLOTS + 1))
    return _joined(parts)


def _counters(memory: Memory, on_device: Array) -> Placed:
    """The allocator's own figure after each event; it is put before the event, whose row then has it."""
    at = np.flatnonzero(on_device)
    records = _records(Kind.COUNTERS, memory, at)
    records["a"], records["c"] = memory.allocated[at], memory.reserved[at]
    records["b"] = records["d"] = layout.UNKNOWN
    return Placed(records, at * SLOTS + 2)


def _events(memory: Memory, call_ids: Array) -> Placed:
    at = np.arange(len(memory.time))
    records = _records(Kind.EVENT, memory, at)
    records["action"] = np.where(memory.is_alloc, Action.ALLOC, Action.FREE_COMPLETED)
    records["a"] = memory.address.view(np.uint64)
    records["b"] = memory.size
    records["call_id"] = call_ids
    return Placed(records, at * SLOTS + 3)


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
    has_total = memory.allocated != UNKNOWN
    shared = int(memory.change[memory.is_shared].sum())  # what is alive: each began within the trace
    return {
        int(device): int(memory.allocated[np.flatnonzero((memory.device == device) & has_total)[-1]])
        + (shared if device >> 8 == _HOST else 0)
        for device in np.unique(memory.device[has_total])
    }


def _joined(parts: list[Placed]) -> Placed:
    if not parts:
        return Placed(np.zeros(0, RECORD_DTYPE), np.zeros(0, np.int64))
    return Placed(np.concatenate([p.records for p in parts]), np.concatenate([p.place for p in parts]))


def _markers(trace: Trace, strings: MemoryStrings) -> list[Placed]:
    start, end, names = ranges_of(trace)
    order = np.lexsort((-end, start))
    begins, ends = np.zeros(len(start), RECORD_DTYPE), np.zeros(len(start), RECORD_DTYPE)
    for records, kind, time in ((begins, Kind.MARKER_BEGIN, start), (ends, Kind.MARKER_END, end)):
        records["kind"], records["time_ns"] = kind, time[order]
        records["thread"] = trace.annotations["thread"][order]
        records["a"] = np.arange(1, len(order) + 1)
    begins["action"] = MarkerKind.USER_SCOPE
    begins["e"] = [strings.intern(names[place]) for place in order.tolist()]
    inner_first = np.arange(len(order))[::-1]
    return [Placed(begins, np.full(len(order), BEFORE)), Placed(ends, AFTER + 1 + inner_first)]


def _steps(trace: Trace, strings: MemoryStrings) -> Placed:
    end, number = step_ends(trace)
    records = np.zeros(len(end), RECORD_DTYPE)
    records["kind"], records["time_ns"], records["a"] = Kind.STEP, end, number
    records["e"] = strings.intern("ProfilerStep") if len(end) else 0
    return Placed(records, np.full(len(end), 2 * AFTER - 1))
