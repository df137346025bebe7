"""Nsight's memory events as a log: allocations of the process, each in the operator around its call.

Stage: readers, part of ``nsys``; the process of ``rankmem import``. In: CUDA_GPU_MEMORY_USAGE_EVENTS with
the runtime calls that they lie in; out: replayed parts. They are memory that the process got from the
driver (with cudaMalloc, say), so PyTorch's own blocks lie within them, and the component is ``app``. The
operator is from the ranges around the call by PyProf's rule; the call's row is the outermost of them that
names one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from rankmem_agent.spool.layout import NO_PHASE, Action, DeviceType, Kind, Phase
from rankmem_imports.kernels.nsys_source import MemoryUse, NsysSource
from rankmem_imports.kernels.profile import TEXTS_KEPT, Around, Launchings
from rankmem_imports.kernels.pyprof_markers import BACKWARD, explain, is_about_operator
from rankmem_imports.kineto.calls import names_operator
from rankmem_imports.recording import Identity, Part
from rankmem_imports.replay import RESERVED, Replay
from rankmem_imports.tensorflow.open_calls import KnownCall, OpenCalls

_PAGEABLE: Final = 0
_PINNED: Final = 1
_MISSING_COLUMNS: Final = RESERVED | {"stream"}


class MemoryLog:
    """The events of one process."""

    def __init__(self, source: NsysSource, identity: Identity) -> None:
        self._source = source
        self._identity = identity
        self._text = functools.lru_cache(TEXTS_KEPT)(source.text)
        self._replay = Replay(identity, missing_columns=_MISSING_COLUMNS, constants={"component": "app"})
        self._calls = OpenCalls(self._replay)
        self.num_events = 0
        self.num_older = 0
        """Blocks that were there before the first event."""

    @property
    def sequence_last(self) -> int:
        """Position of the last record; 0 without any."""
        return max(self._replay.next_seq - 1, 0)

    def parts(self) -> Iterator[Part]:
        """The rows; none where the process has no events."""
        launchings = Launchings(launching for _, launching in self._source.memory())
        if not len(launchings.thread):
            return
        self._record_older()
        around = Around(launchings, self._source)
        for place, (use, launching) in enumerate(self._source.memory()):
            call = self._call(around, place, launching.thread or 0)
            self._calls.end(before_ns=use.time_ns)
            self._event(use, call, launching.thread or 0)
            if self._replay.is_full:
                yield self._replay.part()
        self._calls.end(before_ns=None)
        yield self._replay.part(final=True)

    def _record_older(self) -> None:
        """Records the blocks that are freed but not allocated within the capture: they are older."""
        alive: set[tuple[DeviceType, int, int]] = set()
        older: list[MemoryUse] = []
        first_ns = None
        for use, _ in self._source.memory():
            first_ns = use.time_ns if first_ns is None else first_ns
            key = *_place(use), use.address
            if not use.is_free:
                alive.add(key)
            elif key in alive:
                alive.remove(key)
            else:
                older.append(use)
        for use in older:
            device_type, device_index = _place(use)
            self._replay.record(
                Kind.PREEXISTING,
                action=Action.ALLOC,
                time_ns=max((first_ns or 0) - 1, 0),
                device_type=device_type,
                device_index=device_index,
                address=use.address,
                size_bytes=use.size_bytes,
            )
        self.num_older = len(older)

    def _event(self, use: MemoryUse, call: KnownCall | None, thread: int) -> None:
        inside = call is not None and call.started_ns <= use.time_ns <= call.ended_ns
        if call is not None and inside:
            self._calls.begin(call, use.time_ns)
        device_type, device_index = _place(use)
        self._replay.event(
            Action.FREE_COMPLETED if use.is_free else Action.ALLOC,
            time_ns=use.time_ns,
            device_type=device_type,
            device_index=device_index,
            address=use.address,
            size_bytes=use.size_bytes,
            call_id=call.number if call is not None and inside else 0,
            thread=thread,
        )
        self.num_events += 1

    def _call(self, around: Around, place: int, thread: int) -> KnownCall | None:
        numbers = around.ranges_of(place)
        texts = [self._text(number) for number in numbers]
        for number, text in zip(numbers, texts, strict=True):
            if is_about_operator(text) or names_operator(text):
                explained = explain(texts)
                started_ns, ended_ns = self._source.span(number)
                phase = NO_PHASE
                if explained.sequence_markers:
                    phase = Phase.BACKWARD if explained.direction == BACKWARD else Phase.FORWARD
                operator = explained.operators[0] if explained.operators else text
                return KnownCall(number, operator, started_ns, ended_ns, thread, phase)
        return None


def _place(use: MemoryUse) -> tuple[DeviceType, int]:
    """Type and index of an event's device."""
    if use.memory_kind == _PINNED:
        return DeviceType.PINNED, 0
    return (DeviceType.CPU, 0) if use.memory_kind == _PAGEABLE else (DeviceType.CUDA, use.device)
