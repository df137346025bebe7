"""Records CUDA without a compiler, or another accelerator: its memory history, drained into a spool.

Stage: trainer, the fallback where the native tap cannot be built or there is none. Comes in: the allocator's
ring of events (:mod:`rankmem_agent.tap.snapshot_ring`) and what the hooks record. Goes out: the records of a
spool, like the tap's, through :class:`~rankmem_agent.spool.python_writer.PythonSpoolWriter`. Runs in the
user's threads, from the hooks, at step ends; there is no thread of ours. It never takes over a history that
the user records, where torch tells of it (it reads along), and never switches a history off: that erases what
was not read.

What is lost against the tap is reported once: see :func:`losses`. A drain of 8,192 events takes some 80 ms of
CPU time (torch 2.11): half of it is the look, with the GIL and each allocator's lock. So this is not for
production.
"""

from __future__ import annotations

import gc
import itertools
import json
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rankmem_agent.hooks import missing
from rankmem_agent.signals import alone
from rankmem_agent.spool.layout import IN_CLOSURE, UNKNOWN, DeviceType, Kind, Phase
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_agent.tap.accelerators import CUDA, Accelerator
from rankmem_agent.tap.snapshot_blocks import Figures
from rankmem_agent.tap.snapshot_records import DeviceRecords, Look, Timed, lost_record, timed
from rankmem_agent.tap.snapshot_ring import DRAIN_ENTRIES, History

DRAIN_INTERVAL_S: Final = 5.0
"""A drain is due after so long, if something was allocated: what a kill may lose."""
DRAIN_SHARE: Final = 20
"""Times as long as the last drain took, at least: if a program keeps a history without a bound, each look
takes longer, and no more than a twentieth of its time may go there."""
BUSY_ALLOCATIONS: Final = 500
"""With less a process does nothing with tensors to speak of: half of the tap's ``BUSY_RECORDS``."""
EVENTS_PER_ALLOCATION: Final = 3
"""An alloc, its free_requested, its free_completed: how allocations fill the ring."""
MODULE_CALLS: Final = 64
"""Asking how full the ring is takes some 20 us a device: within a step at every so many calls of modules."""
_LOST: Final = (
    "no operator names, calls, threads or autograd links; steps and phases by time only; no events from the "
    "last seconds if the process is killed; about 12 us an event, in pauses of some 0.1 s"
)
LATE: Final = "late"
"""In a NOTE, with the reason: events come to the log late, and one that ends without END lacks the last."""


def losses(accelerator: Accelerator) -> str:
    """What this recording lacks, for the user."""
    through = f"{accelerator.label} is recorded through PyTorch's memory history"
    if accelerator is CUDA:
        return f"no compiler was found, so {through}: {_LOST} (try: install g++ or clang++)"
    return f"{through}, as rankmem has no tap for it: {_LOST}"


def by_history(accelerator: Accelerator) -> str:
    """Why, for the log."""
    why = "no compiler was found" if accelerator is CUDA else f"rankmem has no tap for {accelerator.label}"
    return f"recorded through PyTorch's memory history, as {why}"


class SnapshotDrain:
    """A recorder (see :mod:`rankmem_agent.hooks.recorder`) that drains the allocator's history.

    Args:
        history: the recording; :class:`~rankmem_agent.tap.snapshot_ring.TorchHistory` in a trainer.
        writer: the open spool.
        report: takes one line for the user; called once, with what is lost.
        accelerator: whose history it is.
    """

    def __init__(
        self,
        history: History,
        writer: PythonSpoolWriter,
        report: Callable[[str], None],
        accelerator: Accelerator = CUDA,
    ) -> None:
        self._history = history
        self._accelerator = accelerator
        self._writer = writer
        self._report = report
        self._lock = threading.RLock()
        self._devices: dict[int, DeviceRecords] = {}
        self._calls = itertools.count(1)
        self._module_calls = 0
        self._pending: list[Timed] = []
        self._course: list[tuple[int, int, int]] = [(0, 0, int(Phase.OTHER))]
        self._drained_s = time.monotonic()
        self._drained_allocations = 0
        self._interval_s = DRAIN_INTERVAL_S
        self._due_entries = DRAIN_ENTRIES
        self._on = False
        self._when_busy: Callable[[], None] | None = None
        self._busy_s = 0.0
        self._has_attached = False
        self._has_pinned = False

    def attach(self) -> None:
        """Start: switch the history on, unless the user has, and write what is alive already.

        After the device's initialisation. Raises RankmemError where this torch cannot.
        """
        with alone(self._lock):
            if not self._history.is_recording():
                self._history.start()
            self._on = self._has_attached = True
            label, why = self._accelerator.label, by_history(self._accelerator)
            self._report(losses(self._accelerator))
            missing.record_names_off(self._writer, f"operators, calls and threads of {label}", why)
            self._writer.record(Kind.NOTE, facts=self._writer.intern(json.dumps({LATE: why})))
            self.drain()

    def drain(self) -> None:
        """Write what happened since the last drain."""
        with alone(self._lock):
            if not self._on:
                return
            self._drained_s = time.monotonic()
            self._drained_allocations = self._history.allocations()
            now_ns, realtime_ns = time.monotonic_ns(), time.time_ns()
            if not self._history.is_recording():
                self._end_history()
                return
            with _collector_paused():
                records = self._looked(now_ns - realtime_ns)
            self._write(self._pending + records + self._pinned_records())
            self._pending = []
            self._writer.record(Kind.CLOCK, time_ns=now_ns, realtime_ns=realtime_ns)
            del self._course[:-1]
            took_s = time.monotonic() - self._drained_s
            self._interval_s = max(DRAIN_INTERVAL_S, DRAIN_SHARE * took_s)

    def _looked(self, to_monotonic_ns: int) -> list[Timed]:
        """The records of all devices since the last look."""
        raw = self._history.look()
        records: list[Timed] = []
        self._due_entries = max([DRAIN_ENTRIES, *(len(trace) // 4 for trace in raw["device_traces"])])
        for index, trace in enumerate(raw["device_traces"]):
            device = self._devices.get(index)
            if device is None:
                facts, kind = self._history.device_facts, self._accelerator
                device = DeviceRecords(index, self._writer, self._calls, facts, kind.name, kind.device_type)
                self._devices[index] = device
            segments = [segment for segment in raw["segments"] if segment["device"] == index]
            look = Look(
                trace=trace,
                segments=segments,
                settings=raw.get("allocator_settings") or {},
                peaks=self._history.peaks(index) if trace or segments else Figures(),
                to_monotonic_ns=to_monotonic_ns,
            )
            records += device.of_look(look, self._course)
        return records

    def when_busy(self, callback: Callable[[], None], after_s: float) -> None:
        """Call back once if much is recorded after so many seconds: in a thread of the user's, from a drain.

        Args:
            callback: must not raise.
        """
        self._when_busy, self._busy_s = callback, time.monotonic() + after_s

    def drain_if_due(self) -> None:
        """Drain if a quarter of the ring may be new, or after some seconds; else nothing. For step ends."""
        if not self._on:
            return
        self._call_if_busy()
        made = self._history.allocations() - self._drained_allocations
        is_late = self._is_late() and bool(made or self._pending)
        is_full = max(made * EVENTS_PER_ALLOCATION, len(self._pending)) >= self._due_entries
        if is_late or is_full:
            self.drain()

    def _is_late(self) -> bool:
        return time.monotonic() - self._drained_s >= self._interval_s

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
        with alone(self._lock):
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
        with alone(self._lock):
            self._on = False
            self._write(self._pending)
            self._pending = []
            missing.record_all_off(self._writer, missing.AGENT_OFF, detail)

    def intern(self, text: str) -> int:
        """The string's id in the spool; 0 if it could not be written."""
        return self._writer.intern(text)

    def record(self, kind: Kind, /, **fields: int) -> None:
        """Keep a record until the next drain, which puts it among the events by its time."""
        record = timed(kind, time.monotonic_ns(), **fields)
        with self._lock:
            is_on = self._on
            if is_on:
                self._pending.append(record)
        if not is_on:  # before the device's initialisation there is nothing to wait for
            self._write([record])
        if kind == Kind.STEP:
            self.drain_if_due()

    def set_module(self, module_string_id: int) -> None:
        """Events carry no module here; a long step, or a program without steps, drains from here."""
        self._module_calls += 1
        if self._module_calls % MODULE_CALLS == 0 or self._is_late():
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

    def _write(self, records: list[Timed]) -> None:
        """By time, so that steps and marks stand among the events; equal times keep their order."""
        records.sort(key=lambda item: item[0])
        self._writer.record_many(b"".join(record for _, record in records))

    def _end_history(self) -> None:
        """The program switched the history off, which erased what was not read: record what is lost, and
        end."""
        now_ns, why = time.monotonic_ns(), "history_switched_off"
        used = [device.place for device in self._devices.values() if device.is_described]
        self._write(
            self._pending + [(now_ns, lost_record(now_ns, place, self._writer, why)) for place in used]
        )
        self._pending = []
        self._on = False
        missing.record_device_off(
            self._writer, self._accelerator.device_type, "the program switched the memory history off"
        )
        label = self._accelerator.label
        self._report(f"the program switched the memory history off: {label} is no longer recorded")

    def _pinned_records(self) -> list[Timed]:
        """A sample of pinned host memory, from its first byte on."""
        held = self._history.pinned_bytes()
        self._has_pinned |= held is not None and held[0] > 0
        if held is None or not self._has_pinned:
            return []
        sample = timed(
            Kind.SAMPLE,
            time.monotonic_ns(),
            device_type=DeviceType.PINNED,
            pinned_reserved_bytes=held[0],
            pinned_active_bytes=UNKNOWN if held[1] is None else held[1],
            device_free_bytes=UNKNOWN,
            device_total_bytes=UNKNOWN,
        )
        return [sample]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the collector of cycles: a look makes objects by the ten thousand, and no cycle. Its rounds
    through them take as long as the look itself."""
    was_on = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()
