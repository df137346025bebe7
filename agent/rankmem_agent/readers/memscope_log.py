"""The log of a process that msMemScope watched: blocks of memory pools, and what lies beneath them.

Stage: readers; the process of ``rankmem import``. In: a dump's rows of one process; out: replayed parts.
Pools (PTA, MindSpore, ATB, PTA_WORKSPACE) have blocks; what the driver gave (HAL) are the segments they are
cut from, or blocks of the component app where no pool was watched. Driver memory on the host is pinned. Held:
the blocks alive, the operators that are open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_agent.pairing.columns import coded_names, null_names
from rankmem_agent.readers.memscope_rows import Row, attributes_of
from rankmem_agent.readers.recording import Identity, Part
from rankmem_agent.readers.replay import Replay
from rankmem_agent.spool.layout import NO_PHASE, NO_SEQUENCE, UNKNOWN, Action, DeviceType, Kind, MarkerKind

POOLS: Final = {"PTA": "pytorch", "MINDSPORE": "mindspore", "ATB": "atb", "PTA_WORKSPACE": "workspace"}
"""Our component of each pool."""
DRIVER: Final = "HAL"
HOST_KINDS: Final = frozenset({"HOST", "HOST_PINNED"})
COMPONENTS: Final = (*POOLS.values(), "app", "pinned_host")
STACK_LINES_MAX: Final = 512
"""Of a stack, nearest to the operator first: more are recursion."""

_FRAME: Final = re.compile(r"^(.*)\((\d+)\): (.*)$")
_LINE: Final = re.compile(r"\r?\n|\\n")
_Device = tuple[int, int]
_WITH_COMPONENT: Final = ("memory_event", "allocation_record")
_PINNED: Final[_Device] = (DeviceType.PINNED, 0)


class MemScopeLog:
    """Reads one process's rows once.

    Args:
        has_pools: some row is a pool's, so what the driver gives are segments.
    """

    def __init__(self, identity: Identity, source: str, *, has_pools: bool) -> None:
        self._replay = Replay(identity)
        self._source = source
        self._has_pools = has_pools
        self._has_driver = False
        self._driver: dict[int, tuple[_Device, int]] = {}
        self._used: dict[tuple[_Device, str], tuple[int, int]] = {}
        self._devices: set[_Device] = set()
        self._threads: dict[int, int] = {}
        self._calls: dict[int, list[list[int]]] = {}
        self._num_calls = 0
        self._ranges: dict[int, list[int]] = {}
        self._num_ranges = 0
        self.num_events = 0
        self.num_unknown_driver_frees = 0
        self.passed_over: dict[str, int] = {}
        """Rows that are no event of an allocator and of nothing we keep, by their event."""

    @property
    def num_unknown_frees(self) -> int:
        """Of blocks that no row allocated."""
        return self._replay.state.num_unknown_frees

    @property
    def unexplained_bytes(self) -> int:
        """Replay minus what the pools say they use."""
        return self._replay.unexplained_bytes

    def parts(self, rows: Iterable[Row]) -> Iterator[Part]:
        """The rows of our tables."""
        for row in rows:
            self._row(row)
            if self._replay.is_full:
                yield _named(self._replay.part())
        yield _named(self._replay.part(final=True))

    def _row(self, row: Row) -> None:
        if row.event in ("MALLOC", "FREE"):
            self._memory(row, is_alloc=row.event == "MALLOC")
        elif row.event == "OP_LAUNCH":
            self._operator(row)
        elif row.event == "MSTX":
            self._range(row)
        elif row.event == "SNAPSHOT":
            self._snapshot(row)
        elif row.event != "SYSTEM":
            self.passed_over[row.event] = self.passed_over.get(row.event, 0) + 1

    def _memory(self, row: Row, *, is_alloc: bool) -> None:
        told = attributes_of(row.attributes)
        address = row.address if row.address is not None else int(told["addr"], 0)
        size = abs(int(told.get("size") or 0))
        kind = row.kind.upper()
        if kind == DRIVER:
            self._driver_memory(row, address, size, is_alloc=is_alloc)
        elif kind in HOST_KINDS:
            device = _PINNED if kind == "HOST_PINNED" else (DeviceType.CPU, 0)
            self._event(row, device, Action.ALLOC if is_alloc else Action.FREE_COMPLETED, address, size)
        else:
            device = _device(row.device)
            action = Action.ALLOC if is_alloc else Action.FREE_COMPLETED
            if told.get("used"):
                self._reserve(row, device, kind, int(told["used"]), int(told.get("total") or 0))
            self._event(row, device, action, address, size, POOLS.get(kind, kind.lower()))
            if told.get("used"):
                self._check(row, device)

    def _driver_memory(self, row: Row, address: int, size: int, *, is_alloc: bool) -> None:
        """A free names neither device nor, in older files, the right size."""
        if is_alloc:
            device = _device(row.device)
            self._driver[address] = device, size
        else:
            device, size = self._driver.pop(address, (_device(row.device), 0))
            if not size:
                self.num_unknown_driver_frees += 1
                return
        if self._has_pools and device[0] == DeviceType.NPU:
            self._has_driver = True
            action = Action.SEGMENT_ALLOC if is_alloc else Action.SEGMENT_FREE
            self._event(row, device, action, address, size)
        else:
            action = Action.ALLOC if is_alloc else Action.FREE_COMPLETED
            self._event(row, device, action, address, size, "app")

    def _event(
        self, row: Row, device: _Device, action: Action, address: int, size: int, component: str = "pytorch"
    ) -> None:
        self._known_device(row, device)
        calls, stack = self._calls.get(row.thread), self._stack(row.stack)
        if calls:
            calls[0][3] = calls[0][3] or stack  # a call has one stack, that of its first block
        self._replay.event(
            action,
            time_ns=row.time_ns,
            device_type=device[0],
            device_index=device[1],
            address=address,
            size_bytes=size,
            pool=COMPONENTS.index(component) if component in COMPONENTS else 0,
            call_id=self._begun(calls[0], row) if calls else 0,
            thread=self._thread(row.thread),
            stack=0 if calls else stack,
        )
        self.num_events += 1

    def _reserve(self, row: Row, device: _Device, kind: str, used: int, total: int) -> None:
        """What a pool says of itself after an event stands in the event's row, so it is told before."""
        _, reserved = self._used.get((device, kind), (0, 0))
        self._used[device, kind] = used, total
        if not self._has_driver and total != reserved:
            self._replay.reserve(
                total - reserved, time_ns=row.time_ns, device_type=device[0], device_index=device[1]
            )
        self._figures(row, device, allocated=self._used_of(device))

    def _check(self, row: Row, device: _Device) -> None:
        """Holds the replay against what the device's pools say they use."""
        used = self._used_of(device)
        self._figures(row, device, allocated=used, requested=used)

    def _figures(self, row: Row, device: _Device, **told: int) -> None:
        self._replay.figures(time_ns=row.time_ns, device_type=device[0], device_index=device[1], **told)

    def _used_of(self, device: _Device) -> int:
        return sum(used for (where, _), (used, _) in self._used.items() if where == device)

    def _operator(self, row: Row) -> None:
        """A thread's outermost operator is the call; it is told when it has an event.

        Kept of each: its name, its start, its id once it is told, its stack."""
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
                    a=started_ns,
                    b=NO_SEQUENCE,
                    c=NO_SEQUENCE,
                    e=frames,
                )

    def _begun(self, call: list[int], row: Row) -> int:
        """The id of a call that has an event now."""
        if not call[2]:
            self._num_calls += 1
            call[2] = self._num_calls
            self._replay.record(
                Kind.CALL_BEGIN,
                time_ns=row.time_ns,
                action=NO_PHASE,
                call_id=call[2],
                thread=self._thread(row.thread),
                a=call[1],
                c=UNKNOWN,
                e=call[0],
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
            action=MarkerKind.NVTX,
            a=self._num_ranges,
            e=name,
            thread=self._thread(row.thread),
        )
        if row.kind == "Range_start":
            open_ranges.append(self._num_ranges)
        else:
            self._close(row, self._num_ranges)

    def _close(self, row: Row, number: int) -> None:
        self._replay.record(Kind.MARKER_END, time_ns=row.time_ns, a=number, thread=self._thread(row.thread))

    def _snapshot(self, row: Row) -> None:
        told = attributes_of(row.attributes)
        device = _device(row.device)
        total, free = (
            int(told.get(f"{name}_mem") or told.get(name) or UNKNOWN) for name in ("total", "free")
        )
        self._known_device(row, device)
        self._replay.record(
            Kind.SAMPLE,
            time_ns=row.time_ns,
            device_type=device[0],
            device_index=device[1],
            a=UNKNOWN,
            b=total - free if UNKNOWN not in (total, free) else UNKNOWN,
            c=free,
            d=total,
        )

    def _known_device(self, row: Row, device: _Device) -> None:
        if device not in self._devices:
            self._devices.add(device)
            facts = self._replay.strings.intern(json.dumps({"source": self._source}))
            self._replay.record(
                Kind.DEVICE, time_ns=row.time_ns, device_type=device[0], device_index=device[1], e=facts
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


def _device(text: str) -> _Device:
    plain = text.strip().lower().removeprefix("npu:").removeprefix("npu")
    return (DeviceType.NPU, min(int(plain), 255)) if plain.isdecimal() else _PINNED


def _named(part: Part) -> Part:
    """The part with the component that the pool's number stands for, and no pool.

    What a pool says that it reserved is no segment with an address.
    """
    kept = [pair for pair in part.rows if pair[0] != "older_segment"]
    return part._replace(
        rows=[(table, _with_component(rows) if table in _WITH_COMPONENT else rows) for table, rows in kept]
    )


def _with_component(rows: pa.RecordBatch) -> pa.RecordBatch:
    names: Sequence[str] = rows.schema.names
    pools = rows.column("pool")
    host = np.array([device == "pinned" for device in rows.column("device").to_pylist()])
    codes = np.array([0 if pool is None else int(pool.rpartition(".")[2]) for pool in pools.to_pylist()])
    codes = np.where(host, COMPONENTS.index("pinned_host"), codes)
    component, pool = names.index("component"), names.index("pool")
    rows = rows.set_column(component, rows.schema.field(component), coded_names(codes, COMPONENTS))
    return rows.set_column(pool, rows.schema.field(pool), null_names(rows.num_rows))
