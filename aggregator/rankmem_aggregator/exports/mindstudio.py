"""``rankmem export mindstudio``: a profiler folder for each rank, as torch_npu writes and Insight reads it.

Stage: export. In: the selection; out: a folder of ``…_ascend_pt`` folders, each with profiler_info and, in
ASCEND_PROFILER_OUTPUT, the database and the CSV files of memory. A GPU is shown as the NPU of the same
index, host memory as one with a number that no device of the rank has: Insight reads each table for one
device, and knows one for each rank, so an accelerator comes first in RANK_DEVICE_MAP. Times are those of the
common clock. Only the tables of MindStudio's memory view are written, without a timeline of kernels.

Source: Ascend/pytorch torch_npu/profiler/analysis (tables, CSV headers, names of folders and files);
Ascend/msinsight server/src/modules/memory/database/DbMemoryDataBase.cpp (which of them are read).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Final

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.file_peaks import FilePeak, check_file_peaks
from rankmem_aggregator.exports.log import Log, Track, rows_of, tracks
from rankmem_aggregator.exports.mindstudio_files import Block, RankFiles
from rankmem_aggregator.exports.mindstudio_totals import GRAPH, ComponentTotals, TotalsAt, with_totals
from rankmem_aggregator.exports.names import PART_CHARS_MAX
from rankmem_protos.clock import has_clock
from rankmem_protos.errors import Code, RankmemError

OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
RANKS_NAMED_MAX: Final = 8
"""Ranks whose host memory's number is in a remark."""
_PINNED: Final = "pinned"
_NAME: Final = re.compile(r"[^A-Za-z0-9.-]+")


def write_mindstudio(selection: Selection, out: Path) -> ExportResult:
    """Writes a folder for each rank."""
    result = ExportResult()
    recorded = tracks(selection)
    found = [track for track in recorded if track.device != _PINNED]
    if not found:
        raise RankmemError(
            Code.UNSUPPORTED,
            f"session {selection.session_id} has pinned host memory alone, which MindStudio does not show",
            "the exports torch-snapshot, chrome-trace, html and parquet have it",
        )
    for track in recorded:
        if track.device == _PINNED:
            peak = f"{track.peak_bytes or 0:,} bytes"
            result.remarks.append(
                f"rank {track.rank}, {_PINNED}: its {peak} are left out: MindStudio shows devices"
            )
    hosts: list[str] = []
    several = False
    for label, of_rank in groupby(found, key=Track.label):
        selection.progress(f"writing {label}")
        rank = _Rank(selection, sorted(of_rank, key=lambda track: _index(track.device) is None), result)
        rank.write(out)
        hosts += rank.hosts()
        several |= len(rank.numbers) > 1
    if hosts:
        more = f" and {len(hosts) - RANKS_NAMED_MAX} more" if len(hosts) > RANKS_NAMED_MAX else ""
        named = ", ".join(hosts[:RANKS_NAMED_MAX])
        result.remarks.append(f"host memory is shown as a device of its own: {named}{more}")
    if several:
        result.remarks.append("MindStudio Insight shows one device of each rank; the files have all of them")
    result.remarks.append("memory only: MindStudio's other views stay empty")
    return result


class _Rank:
    """Writes one rank of an attempt."""

    def __init__(self, selection: Selection, found: list[Track], result: ExportResult) -> None:
        self._selection, self._tracks, self._result = selection, found, result
        self._track = found[0]
        self.numbers = device_numbers([track.device for track in found], self._track.rank)
        """The number of each device; accelerators first."""
        hosts = [number for device, number in self.numbers.items() if _index(device) is None]
        self._host = hosts[0] if hosts else free_number(self.numbers.values(), self._track.rank)
        (self._facts,) = selection.rows("mindstudio_facts", **self._track.whose())

    def hosts(self) -> list[str]:
        """Remarks on devices that are shown under a made-up number."""
        who = self._track.label().replace("-", " ")
        return [
            f"{device} of {who} as NPU:{number}"
            for device, number in self.numbers.items()
            if _index(device) is None
        ]

    def write(self, out: Path) -> None:
        """Writes the rank's folder."""
        folder = out / self._name(out)
        output = folder / OUTPUT
        output.mkdir(parents=True)
        info: dict[str, object] = {
            "rank_id": self._track.rank,
            "rankmem_session": self._selection.session_id,
            "rankmem_missing": self._selection.missing,
        }
        (folder / f"profiler_info_{self._track.rank}.json").write_text(json.dumps(info), encoding="utf-8")
        (folder / "profiler_metadata.json").write_text("{}", encoding="utf-8")
        with RankFiles(output, self._track.rank) as files:
            self._describe(files)
            for track in self._tracks:
                self._samples(files, track)
            for track in self._tracks:
                self._device(files, track)
            for row in rows_of(self._selection.stream("mindstudio_modules", **self._track.whose())):
                device = row["device_id"] if row["device_id"] >= 0 else self._host
                files.module(row["id"], row["name"], row["time_ns"], row["reserved_bytes"], device)
            for row in rows_of(self._selection.stream("mindstudio_static", **self._track.whose())):
                files.static_block(row, self._number(row["device"]))
            for what, count in files.counts.items():
                self._result.add(what, count)

    def _name(self, out: Path) -> str:
        """worker_time_ascend_pt, worker being host_pid, as torch_npu names it."""
        track = self._track
        host = _NAME.sub("-", track.host_name)[:PART_CHARS_MAX]
        process = f"rank{track.rank}" if track.pid is None else track.pid
        began_ns = track.started_ns or track.first_ns
        began = datetime.fromtimestamp(began_ns / 1e9, UTC)
        when = f"_{began:%Y%m%d%H%M%S}{began.microsecond // 1000:03d}" if has_clock(began_ns) else ""
        stem = f"{host}_{process}{when}"
        return f"{stem if not (out / f'{stem}_ascend_pt').exists() else f'{stem}{track.rank}'}_ascend_pt"

    def _describe(self, files: RankFiles) -> None:
        track, facts = self._track, self._facts
        files.describe(
            span_ns=(track.started_ns or track.first_ns, track.ended_ns or track.last_ns),
            host=(facts["host_uid"], facts["host_name"]),
            devices={self._number(t.device): self._title(t.device) for t in self._tracks},
            steps=[(s["id"], s["started_ns"], s["ended_ns"]) for s in facts["steps"] or []],
        )

    def _samples(self, files: RankFiles, track: Track) -> None:
        for row in rows_of(self._selection.stream("mindstudio_samples", **track.values())):
            files.sample(
                row["time_ns"],
                row["app_reserved_bytes"],
                row["device_used_bytes"],
                self._number(track.device),
            )

    def _device(self, files: RankFiles, track: Track) -> None:
        """Writes the records and the blocks of a device."""
        number = self._number(track.device)
        begin = self._selection.rows("mindstudio_begin", **track.values())
        totals = ComponentTotals(
            {
                row["component"]: (row["allocated_bytes"], row["reserved_bytes"], row["active_bytes"])
                for row in begin
            }
        )
        log = Log(self._selection, track)
        kept = TotalsAt(files.folder, track.seq_first, track.seq_last)
        highest = 0
        for batch in log.events():
            events = with_totals(batch)
            followed = totals.follow(events)
            highest = max(highest, followed.highest_bytes())
            kept.put(events.column("seq").to_numpy(), followed.own)
            files.records(totals.records(events, followed), number)
        if highest < (track.peak_bytes or 0):  # above it is right: the allocator's blocks are larger
            check_file_peaks(
                "mindstudio",
                [FilePeak(track, highest)],
                self._result,
                "its records are the allocator's totals after each event",
            )
        files.blocks(self._blocks(log, kept, is_npu=track.device_type == "npu"), number)

    def _blocks(self, log: Log, kept: TotalsAt, *, is_npu: bool) -> Iterator[Block]:
        """The blocks that were allocated or freed in the range."""
        for row in rows_of(log.blocks()):
            # Recorded totals alone make blocks without operator and address.
            is_unattributed = is_npu and row["operator"] is None and row["address"] is None
            ended = row["free_requested_seq"] if row["free_requested_seq"] is not None else row["freed_seq"]
            if is_unattributed or (row["preexisting"] and ended is None):
                continue
            is_graph = row["component"] == GRAPH.lower()
            released = row["free_requested_ns"] if row["free_requested_ns"] is not None else row["freed_ns"]
            yield Block(
                name=row["operator"] or "unknown",
                size=row["size_bytes"],
                allocated_ns=None if row["preexisting"] else row["allocated_ns"],
                released_ns=released,
                active_released_ns=None if is_graph else row["freed_ns"],
                at_alloc=_without_active(kept.at(row["allocation_id"]), is_graph),
                at_release=_without_active(kept.at(ended), is_graph),
                stream=row["stream"],
            )

    def _number(self, device: str) -> int:
        """The number of a device in these files."""
        index = _index(device)
        return self.numbers.get(device, self._host if index is None else index)

    def _title(self, device: str) -> str:
        named = {row["device"]: row["name"] for row in self._facts["devices"] or []}
        return named.get(device) or device


def device_numbers(devices: Sequence[str], rank: int) -> dict[str, int]:
    """A different number for each device of a rank: its index; for host memory the rank (0 could be another
    rank's device) or, where a device has that, the next free one."""
    numbers = {device: index for device in devices if (index := _index(device)) is not None}
    for device in devices:
        if device not in numbers:
            numbers[device] = free_number(numbers.values(), rank)
    return numbers


def free_number(taken: Collection[int], rank: int) -> int:
    """The rank, or the first number above it that is not taken."""
    return next(number for number in count(rank) if number not in taken)


def _index(device: str) -> int | None:
    """The index of an accelerator; None for host memory, and where it is not recorded."""
    index = device.rpartition(":")[2]
    return int(index) if ":" in device and index.isdecimal() else None


def _without_active(totals: tuple[int | None, ...], is_graph: bool) -> tuple[int | None, ...]:
    """The graph engine records no active bytes."""
    return (*totals[:2], None) if is_graph else totals
