"""Dumps of msMemScope (CSV, SQLite): every allocation of a process on an Ascend device, a process a rank.

Stage: readers; the process of ``rankmem import``. In: ``memscope_dump_T.csv`` or ``.db``, with those of the
other devices beside it (``device_N/dump``); out: a recording for each process in them, ordered by the
device that it used most. A dump has no ranks: they are counted.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rankmem_imports.memscope.before import MEMORY_EVENTS, Before
from rankmem_imports.memscope.log import MemScopeLog
from rankmem_imports.memscope.memory import POOLS
from rankmem_imports.memscope.order import BY_BLOCK, LATE_NS, by_time
from rankmem_imports.memscope.recognition import NAME
from rankmem_imports.memscope.rows import NO_PROCESS, Row, rows_of
from rankmem_imports.recording import Closing, Identity, NothingHereError, Part, RankFacts, RankRecording
from rankmem_protos.errors import Code, RankmemError

PROCESSES_MAX: Final = 1_024
"""Of one dump: it watches the processes of a host. No dump has more."""

_DEVICE: Final = "device_"
_DUMPS: Final = "dump"
_DUMP: Final = "memscope_dump_"
"""Folders and files of a dump: device_0/dump/memscope_dump_20260527062213.csv."""


def files_with(path: Path) -> Sequence[Path]:
    """The file, and where it lies in ``device_N/dump`` those of the other devices: a process that uses
    several writes into each."""
    if path.parent.name != _DUMPS or not path.parents[1].name.startswith(_DEVICE):
        return (path,)
    beside = sorted(path.parents[2].glob(f"{_DEVICE}*/{_DUMPS}/{_DUMP}*"), key=str)
    return (path, *(file for file in beside if file != path and file.is_file()))


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """The processes in a dump."""
    path = files[0]
    found: dict[int, _Seen] = {}
    for row in _rows(files):
        seen = found.get(row.process)
        if seen is None:
            if len(found) == PROCESSES_MAX:
                raise RankmemError(
                    Code.EXHAUSTED,
                    f"{path} has more than {PROCESSES_MAX} processes",
                    "import a part of it",
                )
            seen = found[row.process] = _Seen(row.time_ns)
        seen.is_late |= row.time_ns < seen.last_ns - LATE_NS or BY_BLOCK in row.attributes
        seen.first_ns, seen.last_ns = min(seen.first_ns, row.time_ns), max(seen.last_ns, row.time_ns)
        if row.event in MEMORY_EVENTS:
            seen.devices[row.device] += 1
            seen.has_pools |= row.kind.upper() in POOLS
    watched = {process: seen for process, seen in found.items() if seen.devices}
    if not watched:
        raise NothingHereError(
            f"{path} has no allocation",
            "record with msmemscope --events=alloc,free",
        )
    ordered = sorted(watched.items(), key=lambda item: (item[1].device(), item[0]))
    return [MemScopeRecording(files, process, seen) for process, seen in ordered]


def _rows(files: Sequence[Path]) -> Iterator[Row]:
    """The rows of all files that belong to a process."""
    for path in files:
        yield from (row for row in rows_of(path) if row.process != NO_PROCESS)


class _Seen:
    """The facts of a first pass over a process."""

    def __init__(self, time_ns: int) -> None:
        self.first_ns = self.last_ns = time_ns
        self.devices: Counter[str] = Counter()
        self.has_pools = False
        self.is_late = False
        """Its rows are not in the order of time."""

    def device(self) -> int:
        """The number of the device that it used most; -1 for none."""
        numbers = [(count, -int(name)) for name, count in self.devices.items() if name.isdecimal()]
        return -max(numbers)[1] if numbers else -1


class MemScopeRecording:
    """One process."""

    def __init__(self, files: Sequence[Path], process: int, seen: _Seen) -> None:
        self.source = files[0]
        self.facts = RankFacts(pid=process, started_ns=seen.first_ns, ended_ns=seen.last_ns)
        self._files, self._process = files, process
        self._has_pools, self._is_late = seen.has_pools, seen.is_late
        self._log: MemScopeLog | None = None
        self._before = Before()
        self._place = 0

    def parts(self, identity: Identity) -> Iterator[Part]:
        """Its rows, read twice: the older blocks are known after the first time."""
        try:
            self._before = Before.of(self._in_order())
            self._log = MemScopeLog(identity, NAME, self._before, has_pools=self._has_pools)
            yield from self._log.parts(self._in_order())
        except (ValueError, struct.error) as error:
            why = "a number of more than 64 bits" if isinstance(error, struct.error) else error
            raise RankmemError(
                Code.INVALID,
                f"{self.source}, row {self._place}, process {self._process}: {why}",
                "the file is cut short or damaged: export or copy it again",
            ) from error

    def _in_order(self) -> Iterator[Row]:
        """Its rows by time; notes where the one that is read stands in its file."""
        rows = (row for row in _rows(self._files) if row.process == self._process)
        for row in by_time(rows) if self._is_late else rows:
            self._place = row.number
            yield row

    def closing(self) -> Closing:
        """Includes the skipped rows."""
        if self._log is None:
            return Closing(events=0)
        remarks = [f"{count} rows of {event} have no memory events" for event, count in self._skipped()]
        remarks += self._log.driver_remarks()
        if older := self._before.rest_bytes():
            remarks.append(
                f"{older} bytes are older than the recording and are kept as one block for each pool"
            )
        if unknown := self._log.num_unknown_frees + self._log.num_unknown_driver_frees:
            remarks.append(f"{unknown} frees of blocks that no row allocated")
        if elsewhere := self._log.num_uses_elsewhere:
            remarks.append(f"{elsewhere} accesses of blocks that no row allocated")
        return Closing(
            events=self._log.num_events,
            unexplained_bytes=self._log.unexplained_bytes,
            complete=not self._log.unexplained_bytes and not unknown,
            remarks=tuple(remarks),
        )

    def _skipped(self) -> list[tuple[str, int]]:
        return sorted(self._log.skipped.items()) if self._log is not None else []
