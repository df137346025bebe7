"""A process of an Nsight Systems export as a source of kernels, ranges and memory events.

Stage: readers, part of ``nsys``; the process of ``rankmem import``. In: the database; out: streams with
times in UTC. Ids are serialized: 24 bits of thread below 24 bits of process, the machine above.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from rankmem_imports.bounds import checked_bytes, checked_ns
from rankmem_imports.files.sqlite_recording import SqliteRecording
from rankmem_imports.kernels.profile import Launching, TextRange
from rankmem_imports.kernels.recognition import (
    NSYS,
    NSYS_KERNELS,
    NSYS_MEMORY,
    NSYS_RANGES,
    NSYS_START,
    RUNTIME,
)
from rankmem_imports.kernels.rows import Kernel, device_row, kernel_of
from rankmem_imports.kernels.sweep import Range

_GPUS: Final = "TARGET_INFO_GPU"

_KERNEL_COLUMNS: Final = (
    "correlationId", "start", "end", "deviceId", "streamId", "globalPid", "demangledName",
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
)  # fmt: skip
_MEMORY_COLUMNS: Final = (
    "start",
    "globalPid",
    "deviceId",
    "address",
    "bytes",
    "memKind",
    "memoryOperationType",
)
_NO_LAUNCH: Final = Launching(None, None, None, None, None)


class MemoryUse(NamedTuple):
    """An event of CUDA_GPU_MEMORY_USAGE_EVENTS."""

    time_ns: int
    device: int
    address: int
    size_bytes: int
    memory_kind: int
    """ENUM_CUDA_MEM_KIND: 0 pageable, 1 pinned, 2 device, 3 array, 4 managed, 5 and 6 static."""
    is_free: bool


class NsysSource:
    """The streams of one process."""

    def __init__(self, database: SqliteRecording, process: int) -> None:
        self._database = database
        self._process = {"process": process}
        row = database.row("kernels/nsys_start") if database.has(NSYS_START) else None
        self.has_wall_clock = bool(row and row[0])
        self._base_ns = int(row[0]) if row and row[0] else 0
        self._has_kernels = database.has(NSYS_KERNELS)
        if self._has_kernels:
            database.need(NSYS_KERNELS, *_KERNEL_COLUMNS)
        self._has_memory = database.has(NSYS_MEMORY)
        if self._has_memory:
            database.need(NSYS_MEMORY, *_MEMORY_COLUMNS)
        self._has_calls = database.has(RUNTIME, "start", "end", "globalTid", "correlationId")
        self._has_ranges = database.has(NSYS_RANGES, "start", "end", "text", "globalTid")
        self._suffix = "" if database.has(NSYS_RANGES, "textId") else "_no_ids"
        self._threads = self._number_threads()

    def launchings(self) -> Iterator[Launching]:
        """One for each kernel; the first where a correlation id occurs twice."""
        if self._has_kernels:
            statement = "kernels/nsys_launches" if self._has_calls else "kernels/nsys_launches_none"
            yield from (self._launching(row[1:]) for row in self._once(statement))

    def ranges(self) -> Iterator[TextRange]:
        """Those with an end."""
        if not self._has_ranges:
            return
        for thread, start, end, number, text in self._database.rows(
            f"kernels/nsys_ranges{self._suffix}", self._process
        ):
            span = Range(self._threads[thread], start + self._base_ns, end + self._base_ns, number)
            yield TextRange(span, text or "")

    def text(self, number: int) -> str:
        """The text of a range."""
        row = self._database.row(f"kernels/nsys_range_text{self._suffix}", {"number": number})
        return (row[0] if row else None) or ""

    def span(self, number: int) -> tuple[int, int]:
        """Start and end of a range."""
        row = self._database.row(f"kernels/nsys_range_text{self._suffix}", {"number": number})
        assert row is not None
        return row[1] + self._base_ns, row[2] + self._base_ns

    def kernels(self) -> Iterator[Kernel]:
        """As in their table; kernel_id is their place in it."""
        if not self._has_kernels:
            return
        for row in self._database.rows("kernels/nsys_kernels", self._process):
            yield kernel_of(row, name=row[-1] or "", base_ns=self._base_ns)

    def memory(self) -> Iterator[tuple[MemoryUse, Launching]]:
        """The events in the order of time, each with the call that it lies in."""
        if not self._has_memory:
            return
        has_calls = self._has_calls and self._database.has(NSYS_MEMORY, "correlationId")
        for row in self._once("kernels/nsys_memory" if has_calls else "kernels/nsys_memory_no_calls"):
            _, time_ns, device, address, size, kind, operation, *call = row
            at_ns, size_bytes = checked_ns(time_ns + self._base_ns), checked_bytes(size)
            use = MemoryUse(at_ns, device, address, size_bytes, kind, operation == 1)
            yield use, self._launching(call)

    def devices(self) -> Iterator[dict[str, Any]]:
        """Rows of device_info but for the rank: of the devices that the process used."""
        if not self._database.has(_GPUS, "id", "totalMemory", "uuid", "name"):
            return
        used = {kernel.device for kernel in self.kernels()} | {use.device for use, _ in self.memory()}
        for number, total_bytes, uuid, name in self._database.rows("kernels/nsys_devices"):
            if number in used:
                text = None if uuid is None else str(uuid)
                yield device_row(number, name=name, uuid=text, total_bytes=total_bytes, source=NSYS)

    def _number_threads(self) -> dict[int, int]:
        threads = set()
        if self._has_ranges:
            threads |= {thread for (thread,) in self._database.rows("kernels/nsys_threads", self._process)}
        if self._has_calls:
            statements = [("kernels/nsys_launches", self._has_kernels)]
            statements.append(
                ("kernels/nsys_memory", self._has_memory and self._database.has(NSYS_MEMORY, "correlationId"))
            )
            for statement, is_there in statements:
                if is_there:
                    threads |= {row[-1] for row in self._database.rows(statement, self._process)}
        return {thread: number for number, thread in enumerate(sorted(threads - {None}))}

    def _launching(self, call: Any) -> Launching:
        start, end, thread = call
        if start is None or thread is None:
            return _NO_LAUNCH
        process_id, thread_id = thread >> 24 & 0xFF_FFFF, thread & 0xFF_FFFF
        return Launching(
            start + self._base_ns, end + self._base_ns, process_id, thread_id, self._threads[thread]
        )

    def _once(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Rows whose first column differs from the row's before."""
        last = None
        for row in self._database.rows(statement, self._process):
            if row[0] != last:
                last = row[0]
                yield row
