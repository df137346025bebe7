"""The records of one device, made from look to look out of the allocator's history.

Stage: trainer, for the fallback without a compiler (:mod:`rankmem_agent.tap.snapshot_drain`). Comes in: a
device's ring, its segments and the allocator's own peaks. Goes out: records with their times, to be sorted
among those of the hooks. Called with the drain's lock held.

allocated and active bytes are exact at every event, or unknown: they follow from the sizes of blocks
(:mod:`rankmem_agent.tap.snapshot_blocks`), and if these disagree with what the look lists, none is told of
the events before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rankmem_agent.hooks import missing
from rankmem_agent.spool.layout import NO_SEQUENCE, UNKNOWN, Action, DeviceType, Kind
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_agent.spool.records import RECORD_STRUCT, packed
from rankmem_agent.tap.snapshot_blocks import BlockSizes, Figures, Held, held_in
from rankmem_agent.tap.snapshot_format import (
    ACTION_OF_NAME,
    Block,
    MemoryState,
    Segment,
    baseline,
    device_of,
    events_of,
    pools_of,
)
from rankmem_agent.tap.snapshot_ring import RingCursor

UNKNOWN_OPERATOR: Final = "(not recorded)"
DISAGREES: Final = (
    "block sizes that follow from the history differ from the allocator's: NULL there, and their peaks are "
    "those that the allocator tells"
)
_U64_MASK: Final = 2**64 - 1

Timed = tuple[int, bytes]
"""A record and its time, to be sorted by."""
Course = Sequence[tuple[int, int, int]]
"""(time, step, phase) of each change, in order; the first is before everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look shows of a device."""

    trace: Sequence[dict[str, Any]]
    segments: Sequence[dict[str, Any]]
    settings: Mapping[str, Any]
    """The allocator's."""
    peaks: Figures
    """The allocator's own."""
    to_monotonic_ns: int
    """From CLOCK_REALTIME, which the history has."""


class DeviceRecords:
    """One device.

    Args:
        name: of such devices, as torch has it.
        device_type: what they are in the spool.
        calls: numbers of calls, for all devices.
        facts: name, uuid, total_bytes and settings of a device.
    """

    def __init__(
        self,
        index: int,
        writer: PythonSpoolWriter,
        calls: Iterator[int],
        facts: Callable[[int], dict[str, Any]],
        name: str,
        device_type: DeviceType,
    ) -> None:
        self._index = index
        self._name = f"{name}:{index}"
        self.place = {"device_type": int(device_type), "device_index": index}
        """The fields for it."""
        self._writer = writer
        self._calls = calls
        self._facts = facts
        self._cursor = RingCursor()
        self._blocks = BlockSizes()
        self._peaks: Figures | None = None
        self._was_exact = True
        self._was_unused = False
        """A look has shown it before its first segment was made."""
        self.is_described = False
        """Whether it is used: whether it has records."""

    def of_look(self, look: Look, course: Course) -> list[Timed]:
        """At first its facts and what was alive, then the new events, then the allocator's own figures."""
        entries, lost = self._cursor.advance(look.trace)
        if not entries and not lost and not look.segments:
            self._was_unused = True
            return []
        held = held_in(look.segments)
        first_ns = self._time_ns(entries[0], look) if entries else time.monotonic_ns()
        records: list[Timed] = [] if self.is_described else self._first(look, entries, held, first_ns)
        if lost:
            records.append((first_ns, lost_record(first_ns, self.place, self._writer, "ring_overwritten")))
        self._blocks.set_up(look.settings)
        self._blocks.begin()
        events = self._events(entries, look, course)
        is_exact = self._blocks.agree(held, look.peaks, self._peaks) and not lost
        if not is_exact:
            records.append(self._figures(Kind.COUNTERS, first_ns, None))
            self._blocks.adopt(held)
            if not lost:
                self._say_inexact()
        last_ns = max(time.monotonic_ns(), events[-1][0] if events else 0)
        self._peaks = look.peaks
        return [
            *records,
            *events,
            self._figures(Kind.COUNTERS, last_ns, held.figures),
            self._figures(Kind.PEAKS, last_ns, look.peaks),
        ]

    def _first(self, look: Look, entries: Sequence[dict[str, Any]], held: Held, time_ns: int) -> list[Timed]:
        self.is_described = True
        events = events_of(entries)
        state = baseline(replace(device_of(self._index, look.segments), events=events))
        records = self._older(state, time_ns)
        if not state.blocks or self._was_unused:
            records.append(self._figures(Kind.COUNTERS, time_ns, Figures()))
        if not state.segments or self._was_unused:  # all that ever happened follows
            self._peaks = Figures()
            records.append(self._figures(Kind.PEAKS, time_ns, self._peaks))
        elif not events:
            self._blocks.adopt(held)
        return records

    def _older(self, state: MemoryState, time_ns: int) -> list[Timed]:
        facts_id = self._writer.intern(json.dumps({**self._facts(self._index), "source": "snapshot"}))
        records = [timed(Kind.DEVICE, time_ns, facts=facts_id, **self.place)]

        def add(found: Block | Segment, size_bytes: int, action: Action, block_bytes: int = 0) -> None:
            records.append(
                timed(
                    Kind.PREEXISTING,
                    time_ns,
                    action=action,
                    address=found.address,
                    size_bytes=size_bytes,
                    stream=found.stream,
                    pool=found.pool,
                    block_bytes=block_bytes,
                    **self.place,
                )
            )

        for segment in state.segments.values():
            add(segment, segment.size_bytes, Action.SEGMENT_ALLOC)
        for block in state.blocks.values():
            add(block, block.requested_bytes, Action.ALLOC, block.block_bytes)
            if block.awaiting_free:
                add(block, block.requested_bytes, Action.FREE_REQUESTED)
        return records

    def _events(self, entries: Sequence[dict[str, Any]], look: Look, course: Course) -> list[Timed]:
        """Events as records; runs of allocations with one stack become a call, which carries the stack."""
        records: list[Timed] = []
        calls = _Runs(records, self._writer, self._calls, course)
        pack, move, index, time_ns = RECORD_STRUCT.pack, self._blocks.move, self._index, 0
        kind, device_type = int(Kind.EVENT), self.place["device_type"]
        pools = pools_of(entries, look.segments)
        for place, entry in enumerate(entries):
            action = ACTION_OF_NAME.get(entry["action"])
            if action is None:
                continue
            now_ns = self._time_ns(entry, look)
            if now_ns > time_ns:
                time_ns = now_ns
            address, size = entry.get("addr", 0) & _U64_MASK, entry["size"]
            call_id = calls.at(time_ns, entry.get("frames") or ()) if action is Action.ALLOC else 0
            if action is Action.OOM:
                pool = entry.get("device_free") or 0
            else:
                pool = pools.get(place, 0)
                larger = move(action, address, size)
                if larger:
                    records.append(self._rounding(time_ns, action, larger))
            fields = (address, size, entry["stream"] & _U64_MASK, pool, call_id)
            records.append((time_ns, pack(time_ns, *fields, 0, 0, kind, action, device_type, index, 0)))
        calls.end(time_ns)
        return records

    def _rounding(self, time_ns: int, action: Action, larger: int) -> Timed:
        """What an event changes beyond its rounded size: it adds as an alloc, and takes as a free."""
        allocated = {Action.ALLOC: larger, Action.FREE_REQUESTED: -larger}.get(action, 0)
        active = {Action.ALLOC: larger, Action.FREE_COMPLETED: -larger}.get(action, 0)
        return timed(
            Kind.ROUNDING,
            time_ns,
            allocated_bytes=allocated & _U64_MASK,
            active_bytes=active & _U64_MASK,
            **self.place,
        )

    def _figures(self, kind: Kind, time_ns: int, figures: Figures | None) -> Timed:
        """The allocator's own figures; events go on from there. Without any none is known from here on."""
        fields = {f"{name}_bytes": UNKNOWN for name in Figures._fields}
        if figures is not None:
            fields = {f"{name}_bytes": value for name, value in figures._asdict().items()}
        if kind is Kind.COUNTERS:
            fields["moves"] = 1
        return timed(kind, time_ns, **self.place, **fields)

    def _say_inexact(self) -> None:
        if self._was_exact:
            self._was_exact = False
            what = f"some allocated and active bytes of {self._name}"
            missing.record_names_off(self._writer, what, DISAGREES)

    @staticmethod
    def _time_ns(entry: dict[str, Any], look: Look) -> int:
        """The event's time on CLOCK_MONOTONIC; the history has microseconds since 1970."""
        return max(0, (entry.get("time_us") or 0) * 1000 + look.to_monotonic_ns)


class _Runs:
    """Calls around runs of allocations with one stack, step and phase.

    Args:
        records: where they go.
    """

    def __init__(
        self, records: list[Timed], writer: PythonSpoolWriter, numbers: Iterator[int], course: Course
    ) -> None:
        self._records = records
        self._writer = writer
        self._numbers = numbers
        self._course = course
        self._operator = writer.intern(UNKNOWN_OPERATOR)
        self._place = 0
        self._stacks: dict[tuple[int, ...], int] = {}
        """By the identities of the frames: a look has one dictionary for equal ones, as long as it lives."""
        self._call_id = 0
        self._run = (0, 0)

    def at(self, time_ns: int, frames: Sequence[dict[str, Any]]) -> int:
        """The call of an allocation; times do not fall. 0 without frames: the autograd thread has none."""
        course = self._course
        while self._place + 1 < len(course) and course[self._place + 1][0] <= time_ns:
            self._place += 1
        key = tuple(map(id, frames))
        stack_id = self._stacks.get(key)
        if stack_id is None:
            stack_id = self._stacks[key] = self._stack(frames)
        run = (stack_id, self._place)
        if run != self._run:
            self.end(time_ns)
            self._run = run
            if stack_id:
                self._begin(time_ns)
        return self._call_id

    def end(self, time_ns: int) -> None:
        """Ends the open call."""
        if self._call_id:
            fields = {"sequence_first": NO_SEQUENCE, "sequence_last": NO_SEQUENCE, "stack_id": self._run[0]}
            end = timed(Kind.CALL_END, time_ns, call_id=self._call_id, started_ns=time_ns, **fields)
            self._records.append(end)
        self._call_id = 0

    def _begin(self, time_ns: int) -> None:
        self._call_id = next(self._numbers)
        _, step, phase = self._course[self._place]
        begin = timed(
            Kind.CALL_BEGIN,
            time_ns,
            call_id=self._call_id,
            phase=phase,
            started_ns=time_ns,
            step=step,
            operator_name=self._operator,
        )
        self._records.append(begin)

    def _stack(self, frames: Sequence[dict[str, Any]]) -> int:
        frame = self._writer.frame
        return self._writer.stack([frame(f["filename"], f["name"], int(f["line"])) for f in frames])


def timed(kind: Kind, time_ns: int, **fields: int) -> Timed:
    """A record with its time."""
    return time_ns, packed(kind, time_ns=time_ns, **fields)


def lost_record(time_ns: int, place: Mapping[str, int], writer: PythonSpoolWriter, why: str) -> bytes:
    """Events of the device are missing here, how many is unknown."""
    return packed(Kind.LOST, time_ns=time_ns, num_events=UNKNOWN, why=writer.intern(why), **place)
