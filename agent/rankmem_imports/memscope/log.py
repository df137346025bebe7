"""The log of a process that msMemScope watched: blocks of memory pools, and what lies beneath them.

Stage: readers; the process of ``rankmem import``. In: a dump's rows of one process; out: replayed parts.
Pools (PTA, MindSpore, ATB, PTA_WORKSPACE) have blocks. What the driver gave (HAL) to the process itself are
the segments they are cut from; what it gave to a library (RUNTIME, HCCL) is in no pool: samples of that
component. Where no pool was watched, all of it are blocks: of their libraries, and of app. Driver memory on
the host is pinned. Held: the blocks alive, the operators that are open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from rankmem_agent.spool.layout import NO_PHASE, NO_SEQUENCE, UNKNOWN, Action, DeviceType, Kind, MarkerKind
from rankmem_imports.memscope.before import MEMORY_EVENTS, Before
from rankmem_imports.memscope.memory import APP, DRIVER, Memory, device_of, memory_of
from rankmem_imports.memscope.parts import MemScopeParts
from rankmem_imports.memscope.rows import Row, attributes_of, whole
from rankmem_imports.memscope.uses import Uses
from rankmem_imports.recording import Identity, Part
from rankmem_imports.replay import Replay

STACK_LINES_MAX: Final = 512
"""Of a stack, nearest to the operator first: more are recursion."""

_FRAME: Final = re.compile(r"^(.*)\((\d+)\): (.*)$")
_LINE: Final = re.compile(r"\r?\n|\\n")
_Device = tuple[int, int]


class MemScopeLog:
    """Reads one process's rows once.

    Args:
        before: the state before the first row.
        has_pools: some row is a pool's, so memory from the driver to the process itself is segments.
    """

    def __init__(self, identity: Identity, source: str, before: Before, *, has_pools: bool) -> None:
        self._replay = Replay(identity)
        self._uses = Uses()
        self._parts = MemScopeParts(identity, before, self._uses)
        self._source = source
        self._before = before
        self._has_pools = has_pools
        self._driver: dict[int, tuple[_Device, int, str | None]] = {}
        self._used = {pool: (used, 0) for pool, used in before.used.items()}
        self._devices: set[_Device] = set()
        self._threads: dict[int, int] = {}
        self._calls: dict[int, list[list[int]]] = {}
        self._num_calls = 0
        self._ranges: dict[int, list[int]] = {}
        self._num_ranges = 0
        self.num_events = 0
        self.num_unknown_driver_frees = 0
        self.skipped: dict[str, int] = {}
        """Rows without memory events or anything else that is stored, by their event."""

    @property
    def num_unknown_frees(self) -> int:
        """Of blocks that no row allocated."""
        return self._replay.state.num_unknown_frees

    @property
    def unexplained_bytes(self) -> int:
        """Replayed bytes minus the pools' own used bytes."""
        return self._replay.unexplained_bytes

    @property
    def num_uses_elsewhere(self) -> int:
        """Accesses of no block that a row allocated."""
        return self._uses.num_elsewhere

    def driver_remarks(self) -> list[str]:
        """A sentence on each part of the driver's memory that is not in events."""
        return [
            f"{count} rows of {name} on a device became samples of that component: they are in no pool"
            for name, count in sorted(self._parts.sampled.items())
        ]

    def parts(self, rows: Iterable[Row]) -> Iterator[Part]:
        """The rows of our tables."""
        for row in rows:
            if not self._replay.next_seq:
                self._older(row)
            self._row(row)
            if self._replay.is_full:
                yield self._parts.named(self._replay.part())
        yield self._parts.named(self._replay.part(final=True), final=True)

    def _older(self, first: Row) -> None:
        """Records the blocks that are older than the first row."""
        for block in self._before.older():
            self._known_device(first, block.device)
            self._replay.record(
                Kind.PREEXISTING,
                time_ns=first.time_ns,
                action=Action.ALLOC,
                device_type=block.device[0],
                device_index=block.device[1],
                address=block.address,
                size_bytes=block.size,
                pool=self._parts.number(block.component),
            )

    def _row(self, row: Row) -> None:
        if row.event in MEMORY_EVENTS:
            self._memory(row, memory_of(row))
        elif row.event == "OP_LAUNCH":
            self._operator(row)
        elif row.event == "ACCESS":
            self._uses.access(row)
        elif row.event == "MSTX":
            self._range(row)
        elif row.event == "SNAPSHOT":
            self._snapshot(row)
        elif row.event != "SYSTEM":
            self.skipped[row.event] = self.skipped.get(row.event, 0) + 1

    def _memory(self, row: Row, memory: Memory) -> None:
        if memory.kind == DRIVER:
            self._driver_memory(row, memory)
            return
        action = Action.ALLOC if memory.is_alloc else Action.FREE_COMPLETED
        if memory.used is not None:
            self._reserve(row, memory, memory.used)
        seq = self._event(row, memory.device, action, memory.address, memory.size, memory.component())
        if memory.is_alloc:
            self._uses.made(row, memory, seq)
        else:
            self._uses.freed(memory)
        if memory.used is not None:
            self._check(row, memory.device)

    def _driver_memory(self, row: Row, memory: Memory) -> None:
        """Records driver memory. A free has neither device nor module nor, in older files, the right size."""
        device, size, module = memory.device, memory.size, memory.module
        if memory.is_alloc:
            self._driver[memory.address] = device, size, module
        elif memory.address in self._driver:
            device, size, module = self._driver.pop(memory.address)
        else:
            self.num_unknown_driver_frees += 1
            return
        is_sampled = self._has_pools and device[0] == DeviceType.NPU
        if is_sampled and module != APP:
            self._known_device(row, device)
            self._parts.sample(row.time_ns, device, module or DRIVER, size if memory.is_alloc else -size)
        elif is_sampled:
            action = Action.SEGMENT_ALLOC if memory.is_alloc else Action.SEGMENT_FREE
            self._event(row, device, action, memory.address, size)
        else:
            action = Action.ALLOC if memory.is_alloc else Action.FREE_COMPLETED
            self._event(row, device, action, memory.address, size, (module or APP).lower())

    def _event(
        self, row: Row, device: _Device, action: Action, address: int, size: int, component: str = "pytorch"
    ) -> int:
        """Records an event; its position."""
        self._known_device(row, device)
        calls, stack = self._calls.get(row.thread), self._stack(row.stack)
        if calls:
            calls[0][3] = calls[0][3] or stack  # a call has one stack, that of its first block
        self.num_events += 1
        return self._replay.event(
            action,
            time_ns=row.time_ns,
            device_type=device[0],
            device_index=device[1],
            address=address,
            size_bytes=size,
            pool=self._parts.number(component),
            call_id=self._begun(calls[0], row) if calls else 0,
            thread=self._thread(row.thread),
            stack=0 if calls else stack,
        )

    def _reserve(self, row: Row, memory: Memory, used: int) -> None:
        """Records a pool's totals. They are from after the event but in its row, so they come before it."""
        device, total = memory.device, memory.total or 0
        _, reserved = self._used.get((device, memory.kind), (0, 0))
        self._used[device, memory.kind] = used, total
        if not self._before.has_segments(device) and total != reserved:
            self._replay.reserve(
                total - reserved, time_ns=row.time_ns, device_type=device[0], device_index=device[1]
            )
        self._figures(row, device, allocated=self._used_of(device))

    def _check(self, row: Row, device: _Device) -> None:
        """Records the device's used bytes, to compare the replay with."""
        used = self._used_of(device)
        self._figures(row, device, allocated=used, requested=used)

    def _figures(self, row: Row, device: _Device, **totals: int) -> None:
        self._replay.figures(time_ns=row.time_ns, device_type=device[0], device_index=device[1], **totals)

    def _used_of(self, device: _Device) -> int:
        return sum(used for (where, _), (used, _) in self._used.items() if where == device)

    def _operator(self, row: Row) -> None:
        """Follows a thread's operators. The outermost is the call; it is recorded once it has an event.

        Kept of each: its name, its start, its id once it is recorded, its stack."""
        stack = self._calls.setdefault(row.thread, [])
        if row.kind.endswith("_START"):
            stack.append([self._replay.strings.intern(row.name), row.time_ns, 0, 0])
        elif row.kind.endswith("_END") and stack:
            _, started_ns, call_id, frames = stack.pop()
            if call_id:
                self._replay.record(
                    Kind.CALL_END,
                    time_ns=row.time_ns,
                    call_id=call_id,
                    thread=self._thread(row.thread),
                    started_ns=started_ns,
                    sequence_first=NO_SEQUENCE,
                    sequence_last=NO_SEQUENCE,
                    stack_id=frames,
                )

    def _begun(self, call: list[int], row: Row) -> int:
        """The id of a call that has an event, recorded if it is the first."""
        if not call[2]:
            self._num_calls += 1
            call[2] = self._num_calls
            self._replay.record(
                Kind.CALL_BEGIN,
                time_ns=row.time_ns,
                phase=NO_PHASE,
                call_id=call[2],
                thread=self._thread(row.thread),
                started_ns=call[1],
                step=UNKNOWN,
                operator_name=call[0],
            )
        return call[2]

    def _range(self, row: Row) -> None:
        open_ranges = self._ranges.setdefault(row.thread, [])
        if row.kind == "Range_end":
            if open_ranges:
                self._close(row, open_ranges.pop())
            return
        self._num_ranges += 1
        name = self._replay.strings.intern(row.name.strip().strip('"') or row.kind)
        self._replay.record(
            Kind.MARKER_BEGIN,
            time_ns=row.time_ns,
            marker_kind=MarkerKind.NVTX,
            marker_id=self._num_ranges,
            name=name,
            thread=self._thread(row.thread),
        )
        if row.kind == "Range_start":
            open_ranges.append(self._num_ranges)
        else:
            self._close(row, self._num_ranges)

    def _close(self, row: Row, number: int) -> None:
        self._replay.record(
            Kind.MARKER_END, time_ns=row.time_ns, marker_id=number, thread=self._thread(row.thread)
        )

    def _snapshot(self, row: Row) -> None:
        attributes = attributes_of(row.attributes)
        device = device_of(row.device)
        words = ((attributes.get(f"{name}_mem") or attributes.get(name), name) for name in ("total", "free"))
        total, free = (whole(word, name) if word else UNKNOWN for word, name in words)
        self._known_device(row, device)
        self._replay.record(
            Kind.SAMPLE,
            time_ns=row.time_ns,
            device_type=device[0],
            device_index=device[1],
            app_reserved_bytes=UNKNOWN,
            device_used_bytes=total - free if UNKNOWN not in (total, free) else UNKNOWN,
            device_free_bytes=free,
            device_total_bytes=total,
        )

    def _known_device(self, row: Row, device: _Device) -> None:
        if device not in self._devices:
            self._devices.add(device)
            facts = self._replay.strings.intern(json.dumps({"source": self._source}))
            self._replay.record(
                Kind.DEVICE, time_ns=row.time_ns, device_type=device[0], device_index=device[1], facts=facts
            )

    def _thread(self, system_id: int) -> int:
        """Threads by order of appearance, from 1, as torch's profiler numbers them."""
        return self._threads.setdefault(system_id, len(self._threads) + 1)

    def _stack(self, text: str) -> int:
        if not text:
            return 0
        strings = self._replay.strings
        lines = (_FRAME.match(line.strip()) for line in _LINE.split(text)[:STACK_LINES_MAX])
        return strings.make_stack(
            [strings.frame(found[1], found[3], int(found[2])) for found in lines if found]
        )
