"""Nsight Systems' SQLite export: NVTX ranges, kernels by PyProf's marker rule, allocations of device memory.

Stage: readers; the process of ``rankmem import``. In: the database of ``nsys export --type sqlite``; out:
one rank for each process that ran kernels or allocated, in the order of their ids. Tables are made lazily
by the exporter, so each but StringIds may be absent. Source: NVIDIA's SQLite export schema reference,
2021.5 to 2026.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rankmem_imports.files.sqlite_recording import SqliteRecording, reading
from rankmem_imports.kernels.nsys_memory import MemoryLog
from rankmem_imports.kernels.nsys_source import NsysSource
from rankmem_imports.kernels.profile import KernelProfile
from rankmem_imports.kernels.recognition import NSYS_KERNELS, NSYS_MEMORY, NSYS_START, NSYS_STRINGS
from rankmem_imports.recording import Closing, Identity, NothingHereError, Part, RankFacts, RankRecording
from rankmem_protos.errors import Code, RankmemError

PROCESSES_MAX: Final = 4096
"""Of one export: a node has some hundred."""


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """A rank for each process.

    Raises:
        RankmemError: INVALID where there is neither a kernel nor an allocation.
    """
    (path,) = files
    with reading(path), SqliteRecording(path) as database:
        database.need(NSYS_STRINGS, "id", "value")
        found: set[int] = set()
        of_table = {NSYS_KERNELS: "kernels/nsys_processes", NSYS_MEMORY: "kernels/nsys_memory_processes"}
        for table, statement in of_table.items():
            if database.has(table, "globalPid"):
                found |= {int(process) for (process,) in database.rows(statement)}
        has_facts = database.has("TARGET_INFO_SYSTEM_ENV")
        facts = dict(database.rows("kernels/nsys_facts")) if has_facts else {}
        facts[NSYS_START] = database.row("kernels/nsys_start") if database.has(NSYS_START) else None
    if not found:
        raise NothingHereError(
            f"{path} has neither kernels nor allocations",
            "record with nsys profile --trace=cuda,nvtx --cuda-memory-usage=true",
        )
    if len(found) > PROCESSES_MAX:
        raise RankmemError(Code.EXHAUSTED, f"{path} has {len(found)} processes, at most {PROCESSES_MAX}")
    several = len(found) > 1
    return tuple(
        NsysRecording(path, process, place if several else None, facts)
        for place, process in enumerate(sorted(found))
    )


class NsysRecording:
    """A process of an export."""

    def __init__(self, path: Path, process: int, rank: int | None, facts: dict[str, Any]) -> None:
        self.source = path
        self._process = process
        host = facts.get("Hostname")
        self.facts = RankFacts(
            rank=rank,
            pid=process & 0xFF_FFFF,
            host_uid=host,
            host_name=host,
            gpu_driver=facts.get("NvDriverVersion"),
            started_ns=started[0] if (started := facts.get(NSYS_START)) else None,
        )
        self._closing = Closing(events=0)

    def parts(self, identity: Identity) -> Iterator[Part]:
        """The memory events with their blocks and calls, then devices, markers, kernels."""
        with reading(self.source), SqliteRecording(self.source) as database:
            source = NsysSource(database, self._process)
            memory = MemoryLog(source, identity)
            yield from memory.parts()
            profile = KernelProfile(source)
            yield from profile.parts(identity, sequence_last=memory.sequence_last)
            remarks = [*profile.remarks(has_memory=memory.num_events > 0)]
            if not source.has_wall_clock:
                remarks.append("the export has no start time: times count from its beginning")
            if memory.num_older:
                remarks.append(f"{memory.num_older} freed blocks are from before the recording")
            self._closing = Closing(events=memory.num_events, remarks=tuple(remarks))

    def closing(self) -> Closing:
        """A capture begins after the process; so it is never complete."""
        return self._closing
