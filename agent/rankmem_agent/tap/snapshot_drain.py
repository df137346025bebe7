"""Records CUDA without a compiler: PyTorch's own memory history, drained into a spool.

Stage: trainer, the fallback where the native tap cannot be built. Comes in: the allocator's ring of events
(:mod:`rankmem_agent.tap.snapshot_ring`) and what the hooks record. Goes out: the records of a spool, like
the tap's, through :class:`~rankmem_agent.spool.python_writer.PythonSpoolWriter`. Runs in the user's threads,
from the hooks, at step ends; there is no thread of ours. It never takes over a history that the user records
(it reads along) and never switches a history off: that erases what was not read.

What is lost against the tap is reported once: see :data:`LOSSES`. A look holds the GIL and each allocator's
lock for some 7 us an entry of the ring (0.5 s for a full one), so this is not for production.
"""

from __future__ import annotations

import json
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rankmem_agent.hooks import missing
from rankmem_agent.spool.layout import IN_CLOSURE, NO_SEQUENCE, UNKNOWN, Action, DeviceType, Kind, Phase
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_agent.spool.records import packed
from rankmem_agent.tap.snapshot_format import (
    Block,
    DeviceSnapshot,
    Event,
    MemoryState,
    Segment,
    baseline,
    events_of,
    parse,
    with_pools,
)
from rankmem_agent.tap.snapshot_ring import RING_ENTRIES, History, RingCursor

DRAIN_INTERVAL_S: Final = 5.0
"""A drain is due after so long, if something was allocated: what a kill may lose."""
BUSY_ALLOCATIONS: Final = 500
"""With less a process does nothing with tensors to speak of: half of the tap's ``BUSY_RECORDS``."""
EVENTS_PER_ALLOCATION: Final = 3
"""An alloc, its free_requested, its free_completed: how allocations fill the ring."""
UNKNOWN_OPERATOR: Final = "(not recorded)"
LOSSES: Final = (
    "no compiler was found, so CUDA is recorded through PyTorch's memory history: no operator names, calls, "
    "threads or autograd links; steps and phases by time only; no events from the last seconds if the "
    "process is killed; about 14 us an event (try: install g++ or clang++)"
)
BY_HISTORY: Final = "recorded through PyTorch's memory history, as no compiler was found"


class SnapshotDrain:
    """A recorder (see :mod:`rankmem_agent.hooks.recorder`) that drains the allocator's history.

    Args:
        history: the recording; :class:`~rankmem_agent.tap.snapshot_ring.TorchHistory` in a trainer.
        writer: the open spool.
        report: takes one line for the user; called once, with what is lost.
    """

    def __init__(self, history: History, writer: PythonSpoolWriter, report: Callable[[str], None]) -> None:
        self._history = history
        self._writer = writer
        self._report = report
        self._lock = threading.RLock()
        self._cursors: dict[int, RingCursor] = {}
        self._described: set[int] = set()
        self._pending: list[tuple[int, bytes]] = []
        self._course: list[tuple[int, int, int]] = [(0, 0, int(Phase.OTHER))]
        self._next_call = 1
        self._drained_s = time.monotonic()
        self._drained_allocations = 0
        self._on = False
        self._when_busy: Callable[[], None] | None = None
        self._busy_s = 0.0
        self._has_attached = False
        self._has_pinned = False

    def attach(self) -> None:
        """Start: switch the history on, unless the user has, and write what is alive already.

        After CUDA's initialisation. Raises RankmemError where this torch cannot.
        """
        with self._lock:
            if not self._history.is_recording():
                self._history.start()
            self._on = self._has_attached = True
            self._report(LOSSES)
            missing.record_names_off(self._writer, "operators, calls and threads of CUDA", BY_HISTORY)
            self.drain()

    def drain(self) -> None:
        """Write what happened since the last drain."""
        with self._lock:
            if not self._on:
                return
            self._drained_s = time.monotonic()
            self._drained_allocations = self._history.allocations()
            now_ns, realtime_ns = time.monotonic_ns(), time.time_ns()
            if not self._history.is_recording():
                self._end_history()
                return
            raw = self._history.look()
            records, self._pending = self._pending, []
            devices = {device.device_index: device for device in parse({**raw, "device_traces": ()})}
            for index, trace in enumerate(raw["device_traces"]):
                device = devices.get(index) or _without_segments(index)
                records += self._device_records(device, trace, now_ns - realtime_ns)
            self._write(records + self._pinned_records())
            self._writer.record(Kind.CLOCK, time_ns=now_ns, realtime_ns=realtime_ns)
            del self._course[:-1]

    def when_busy(self, callback: Callable[[], None], after_s: float) -> None:
        """Call back once if much is recorded after so many seconds: in a thread of the user's, from a drain.

        Args:
            callback: must not raise.
        """
        self._when_busy, self._busy_s = callback, time.monotonic() + after_s

    def drain_if_due(self) -> None:
        """Drain if half the ring may be full, or after DRAIN_INTERVAL_S; else nothing. For step ends."""
        if not self._on:
            return
        self._call_if_busy()
        made = self._history.allocations() - self._drained_allocations
        is_late = time.monotonic() - self._drained_s >= DRAIN_INTERVAL_S and bool(made or self._pending)
        is_full = max(made * EVENTS_PER_ALLOCATION, len(self._pending)) >= RING_ENTRIES // 2
        if is_late or is_full:
            self.drain()

    def _call_if_busy(self) -> None:
        callback = self._when_busy
        if callback is None or time.monotonic() < self._busy_s:
            return
        if self.is_busy:
            self._when_busy = None
            callback()

    @property
    def is_busy(self) -> bool:
        """Whether it has followed much."""
        return self._on and self._history.allocations() >= BUSY_ALLOCATIONS

    def close(self) -> None:
        """Drain and end the spool. Idempotent.

        The history stays on: the process ends, and a program that has switched on its own would lose it.
        """
        with self._lock:
            self.drain()
            self._on = False
            self._writer.close()

    def move(self, path: Path) -> None:
        """Moves the spool to ``path``."""
        self._writer.move(path)

    @property
    def has_recorded(self) -> bool:
        """Whether it has followed a device's memory."""
        return self._has_attached

    def switch_off(self, detail: str) -> None:
        """Drains no more; what was not drained is lost with what follows."""
        with self._lock:
            self._on = False
            self._write(self._pending)
            self._pending = []
            missing.record_all_off(self._writer, missing.AGENT_OFF, detail)

    def intern(self, text: str) -> int:
        """The string's id in the spool; 0 if it could not be written."""
        return self._writer.intern(text)

    def record(self, kind: Kind, /, **fields: int) -> None:
        """Keep a record until the next drain, which puts it among the events by its time."""
        with self._lock:
            self._pending.append(_record(kind, time.monotonic_ns(), **fields))
            if not self._on:  # before CUDA's initialisation there is nothing to wait for
                self._write(self._pending)
                self._pending = []
        if kind == Kind.STEP:
            self.drain_if_due()

    def set_module(self, module_string_id: int) -> None:
        """Events carry no module here; a program without steps drains from here."""
        if time.monotonic() - self._drained_s >= DRAIN_INTERVAL_S:
            self.drain_if_due()

    def tag(
        self,
        category: int,
        device_type: int,
        device_index: int,
        addresses: array[int],
        sizes: array[int],
        names: array[int],
    ) -> None:
        """A TAG record (``since_allocation``) for each address that is not 0."""
        device = {"device_type": device_type, "device_index": device_index}
        tag = device | {"category": category, "since_allocation": 1}
        for address, size_bytes, name in zip(addresses, sizes, names, strict=True):
            if address:
                self.record(Kind.TAG, **tag, address=address, size_bytes=size_bytes, name=name)

    def module_slot(self) -> SnapshotDrain:
        """Itself: what is stored there goes to :meth:`set_module`."""
        return self

    def module_reader(self) -> None:
        """None: the operators are not observed as they begin."""

    def __setitem__(self, index: int, module_string_id: int) -> None:
        """The module slot's store."""
        self.set_module(module_string_id)

    def step_calls(self) -> None:
        """There are none: without the tap, Python does all of it."""

    def set_phase(self, phase: int) -> None:
        """The process' phase from now on; around a closure's forward it is not known what runs."""
        known = Phase.OTHER if phase == IN_CLOSURE else phase
        self._course.append((time.monotonic_ns(), self._course[-1][1], known))

    def set_step(self, step: int, *, by_call: bool = False) -> None:
        """The number of the step that has begun."""
        self._course.append((time.monotonic_ns(), step, self._course[-1][2]))

    def _write(self, records: list[tuple[int, bytes]]) -> None:
        """By time, so that steps and marks stand among the events; equal times keep their order."""
        records.sort(key=lambda item: item[0])
        self._writer.record_many(b"".join(record for _, record in records))

    def _end_history(self) -> None:
        """The program switched the history off, which erased what was not read: record what is lost, and
        end."""
        why = self._writer.intern("history_switched_off")
        records = [(now := time.monotonic_ns(), _lost(now, index, why)) for index in self._described]
        self._write(self._pending + records)
        self._pending = []
        self._on = False
        missing.record_device_off(
            self._writer, DeviceType.CUDA, "the program switched the memory history off"
        )
        self._report("the program switched the memory history off: CUDA is no longer recorded")

    def _device_records(
        self, device: DeviceSnapshot, trace: Sequence[dict[str, Any]], to_monotonic_ns: int
    ) -> list[tuple[int, bytes]]:
        """The records of one device: at first its facts and what was alive, then the new events."""
        index = device.device_index
        entries, lost = self._cursors.setdefault(index, RingCursor()).advance(trace)
        events = with_pools(events_of(entries), device.segments)
        if not events and not lost and not device.segments:
            return []  # a device that the rank does not use
        first_ns = _time_ns(events[0], to_monotonic_ns) if events else time.monotonic_ns()
        records: list[tuple[int, bytes]] = []
        if index not in self._described:
            self._described.add(index)
            records += self._first_records(index, baseline(replace(device, events=events)), first_ns)
        if lost:
            records.append((first_ns, _lost(first_ns, index, self._writer.intern("ring_overwritten"))))
        records += self._event_records(index, events, to_monotonic_ns)
        records.append(_record(Kind.COUNTERS, time.monotonic_ns(), **_cuda(index), **_figures(device)))
        return records

    def _pinned_records(self) -> list[tuple[int, bytes]]:
        """A sample of pinned host memory, from its first byte on."""
        held = self._history.pinned_bytes()
        self._has_pinned |= held is not None and held[0] > 0
        if held is None or not self._has_pinned:
            return []
        sample = _record(
            Kind.SAMPLE,
            time.monotonic_ns(),
            device_type=DeviceType.PINNED,
            pinned_reserved_bytes=held[0],
            pinned_active_bytes=held[1],
            device_free_bytes=UNKNOWN,
            device_total_bytes=UNKNOWN,
        )
        return [sample]

    def _first_records(self, index: int, state: MemoryState, time_ns: int) -> list[tuple[int, bytes]]:
        facts = {**self._history.device_facts(index), "source": "snapshot"}
        facts_id = self._writer.intern(json.dumps(facts))
        records = [_record(Kind.DEVICE, time_ns, facts=facts_id, **_cuda(index))]
        for segment in state.segments.values():
            place = _range_of(segment, segment.size_bytes, index)
            records.append(_record(Kind.PREEXISTING, time_ns, action=Action.SEGMENT_ALLOC, **place))
        for block in state.blocks.values():
            place = _range_of(block, block.requested_bytes, index)
            records.append(
                _record(
                    Kind.PREEXISTING, time_ns, action=Action.ALLOC, block_bytes=block.block_bytes, **place
                )
            )
            if block.awaiting_free:
                records.append(_record(Kind.PREEXISTING, time_ns, action=Action.FREE_REQUESTED, **place))
        return records

    def _event_records(
        self, index: int, events: Sequence[Event], to_monotonic_ns: int
    ) -> list[tuple[int, bytes]]:
        """Events as records; runs of allocations with one stack become a call, which carries the stack."""
        records: list[tuple[int, bytes]] = []
        call_id, run, time_ns = 0, (0, 0), 0  # the open call; its stack and place in the course
        for event in events:
            time_ns = max(time_ns, _time_ns(event, to_monotonic_ns))
            is_alloc = event.action is Action.ALLOC
            now = (self._stack(event.frames), self._place(time_ns)) if is_alloc else run
            if call_id and now != run:
                records.append(_call_end(time_ns, call_id, run[0]))
                call_id = 0
            if is_alloc and now[0] and not call_id:
                call_id, run = self._next_call, now
                self._next_call += 1
                records.append(self._call_begin(time_ns, call_id, self._course[now[1]]))
            values = _range_of(event, event.size_bytes, index) | {"call_id": call_id if is_alloc else 0}
            if event.action is Action.OOM:
                del values["pool"]
                values["device_free_bytes"] = event.device_free_bytes or 0
            records.append(_record(Kind.EVENT, time_ns, action=event.action, **values))
        if call_id:
            records.append(_call_end(time_ns, call_id, run[0]))
        return records

    def _place(self, time_ns: int) -> int:
        """Which entry of the course was the last before this time."""
        return max(0, bisect_right(self._course, time_ns, key=lambda change: change[0]) - 1)

    def _call_begin(self, time_ns: int, call_id: int, course: tuple[int, int, int]) -> tuple[int, bytes]:
        _, step, phase = course
        return _record(
            Kind.CALL_BEGIN,
            time_ns,
            call_id=call_id,
            phase=phase,
            started_ns=time_ns,
            step=step,
            operator_name=self._writer.intern(UNKNOWN_OPERATOR),
        )

    def _stack(self, frames: Sequence[dict[str, Any]]) -> int:
        """The id of a stack; 0 without frames (the autograd thread has no Python frame)."""
        frame = self._writer.frame
        return self._writer.stack([frame(f["filename"], f["name"], int(f["line"])) for f in frames])


def _record(kind: Kind, time_ns: int, **fields: int) -> tuple[int, bytes]:
    """A record with its time, to be sorted by."""
    return time_ns, packed(kind, time_ns=time_ns, **fields)


def _cuda(index: int) -> dict[str, int]:
    return {"device_type": DeviceType.CUDA, "device_index": index}


def _range_of(found: Block | Segment | Event, size_bytes: int, index: int) -> dict[str, int]:
    """The fields of an event for where its bytes lie."""
    return _cuda(index) | {
        "address": found.address,
        "size_bytes": size_bytes,
        "stream": found.stream,
        "pool": found.pool,
    }


def _call_end(time_ns: int, call_id: int, stack_id: int) -> tuple[int, bytes]:
    return _record(
        Kind.CALL_END,
        time_ns,
        call_id=call_id,
        started_ns=time_ns,
        sequence_first=NO_SEQUENCE,
        sequence_last=NO_SEQUENCE,
        stack_id=stack_id,
    )


def _time_ns(event: Event, to_monotonic_ns: int) -> int:
    """The event's time on CLOCK_MONOTONIC; the history has microseconds since 1970."""
    return max(0, (event.time_us or 0) * 1000 + to_monotonic_ns)


def _lost(time_ns: int, index: int, why: int) -> bytes:
    return packed(Kind.LOST, time_ns=time_ns, num_events=UNKNOWN, why=why, **_cuda(index))


def _without_segments(index: int) -> DeviceSnapshot:
    return DeviceSnapshot(device_index=index, events=[], blocks={}, segments=[])


def _figures(device: DeviceSnapshot) -> dict[str, int]:
    """The allocator's own figures at the instant of the look."""
    return {
        "allocated_bytes": device.allocated_bytes,
        "active_bytes": device.active_bytes,
        "reserved_bytes": sum(segment.size_bytes for segment in device.segments),
        "requested_bytes": sum(block.requested_bytes for block in device.blocks.values()),
    }
