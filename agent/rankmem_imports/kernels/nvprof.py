"""nvprof's (NVVP's) SQLite: kernels with what launched them, by PyProf's marker rule.

Stage: readers; the process of ``rankmem import``. In: the database; out: rows of ``kernel_launch``,
``marker`` and ``device_info``. One rank, as nvprof writes a file for each process. Source: CUPTI's activity
records (cupti_activity.h, CUDA 10), as nvprof 10 exports them; docs/formats.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rankmem_imports.files.sqlite_recording import SqliteRecording, reading
from rankmem_imports.kernels.demangle import demangled
from rankmem_imports.kernels.profile import KernelProfile, Launching, TextRange
from rankmem_imports.kernels.recognition import NVPROF, NVPROF_KERNELS, NVPROF_STRINGS, RUNTIME
from rankmem_imports.kernels.rows import Kernel, device_row, kernel_of
from rankmem_imports.kernels.sweep import Range
from rankmem_imports.recording import Closing, Identity, NothingHereError, Part, RankFacts, RankRecording

_MARKERS: Final = "CUPTI_ACTIVITY_KIND_MARKER"
_DRIVER: Final = "CUPTI_ACTIVITY_KIND_DRIVER"
_DEVICES: Final = "CUPTI_ACTIVITY_KIND_DEVICE"
_CALL_COLUMNS: Final = ("_id_", "start", "end", "processId", "threadId", "correlationId")
_NEEDED: Final = (
    (NVPROF_STRINGS, ("_id_", "value")),
    (RUNTIME, _CALL_COLUMNS),
    (_MARKERS, ("_id_", "timestamp", "id", "flags", "objectId", "name")),
    (
        NVPROF_KERNELS,
        (
            "_id_", "correlationId", "start", "end", "deviceId", "streamId", "name",
            "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
        ),
    ),
)  # fmt: skip


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """The one rank."""
    (path,) = files
    return (NvprofRecording(path),)


class NvprofRecording:
    """The process that nvprof watched."""

    def __init__(self, path: Path) -> None:
        self.source = path
        with reading(path), SqliteRecording(path) as database:
            for table, columns in _NEEDED:
                database.need(table, *columns)
            spans = [database.row("kernels/nvprof_span")]
            if database.has(_DRIVER, *_CALL_COLUMNS):
                spans.append(database.row("kernels/nvprof_span_driver"))
            launching = next((one for one in _Nvprof(database).launchings() if one.thread is not None), None)
        begun = [span[0] for span in spans if span and span[0] is not None]
        ended = [span[1] for span in spans if span and span[1] is not None]
        self.facts = RankFacts(
            pid=launching.process_id if launching else None,
            started_ns=min(begun, default=None),
            ended_ns=max(ended, default=None),
        )
        self._profile: KernelProfile | None = None

    def parts(self, identity: Identity) -> Iterator[Part]:
        """Devices, markers, kernels."""
        with reading(self.source), SqliteRecording(self.source) as database:
            source = _Nvprof(database)
            self._profile = KernelProfile(source)
            yield from self._profile.parts(identity)
        if not self._profile.num_kernels:
            raise NothingHereError(
                f"{self.source} has no kernel", "profile with nvprof --profile-from-start on"
            )

    def closing(self) -> Closing:
        """Kernels alone: nothing is known of the allocator."""
        return Closing(events=0, remarks=self._profile.remarks() if self._profile else ())


class _Nvprof:
    """The database as a source of kernels. Threads are numbered in the order of their object ids."""

    def __init__(self, database: SqliteRecording) -> None:
        self._database = database
        has_driver = database.has(_DRIVER, *_CALL_COLUMNS)
        self._statement = "kernels/nvprof_launches_driver" if has_driver else "kernels/nvprof_launches"
        keys = {key for (key,) in database.rows("kernels/nvprof_threads") if isinstance(key, bytes)}
        keys |= {
            _object_id(process, thread) for *_, process, thread in self._launches() if process is not None
        }
        self._threads = {key: number for number, key in enumerate(sorted(keys))}

    def launchings(self) -> Iterator[Launching]:
        """One for each kernel; the first where a correlation id occurs twice."""
        last = None
        for place, start, end, process, thread in self._launches():
            if place == last:
                continue
            last = place
            if start is None or process is None:
                yield Launching(None, None, None, None, None)
            else:
                number = self._threads[_object_id(process, thread)]
                yield Launching(start, end, process, thread & 0xFFFF_FFFF, number)

    def ranges(self) -> Iterator[TextRange]:
        """Opened and closed markers."""
        for key, start, end, number, text in self._database.rows("kernels/nvprof_ranges"):
            if key in self._threads:
                yield TextRange(Range(self._threads[key], start, end, number), text or "")

    def text(self, number: int) -> str:
        """The text of a marker."""
        row = self._database.row("kernels/nvprof_range_text", {"number": number})
        return (row[0] if row else None) or ""

    def kernels(self) -> Iterator[Kernel]:
        """As in their table; kernel_id is their place in it."""
        for row in self._database.rows("kernels/nvprof_kernels"):
            yield kernel_of(row, name=demangled(row[-1] or ""))

    def devices(self) -> Iterator[dict[str, Any]]:
        """Rows of device_info but for the rank."""
        if not self._database.has(_DEVICES, "id", "globalMemorySize", "uuid", "name"):
            return
        for number, total_bytes, uuid, name in self._database.rows("kernels/nvprof_devices"):
            text = uuid.hex() if isinstance(uuid, bytes) else None
            yield device_row(number, name=name, uuid=text, total_bytes=total_bytes, source=NVPROF)

    def _launches(self) -> Iterator[tuple[Any, ...]]:
        return self._database.rows(self._statement)


def _object_id(process: int, thread: int) -> bytes:
    """CUPTI's name of a thread: process in 4 bytes, thread (unsigned) in 8."""
    return struct.pack("<Iq", process & 0xFFFF_FFFF, thread & 0xFFFF_FFFF)
