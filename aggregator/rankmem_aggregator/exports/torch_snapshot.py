"""``rankmem export torch-snapshot``: a rank's log as a memory snapshot of PyTorch.

Stage: export. In: the selection; out: for each rank and attempt a pickle (protocol 4) that
``torch.cuda._memory_viz`` and the web viewer open: traces, segments with their blocks, annotations. For a
range of time the segments are those at its end. Written as a stream. The remarks name what the database does
not keep: the rounded size of blocks, and segments older than the recording.

Source: ``_snapshot`` of torch/cuda/memory.py (2.13) and MemoryViz.js.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.file_peaks import FilePeak, RunningBytes, check_file_peaks
from rankmem_aggregator.exports.log import Log, Stacks, Track, rows_of, tracks, with_idle_devices
from rankmem_aggregator.exports.output_files import output_files
from rankmem_aggregator.exports.pickle_stream import PickleStream, Plain
from rankmem_aggregator.exports.snapshot_segments import SMALL_BYTES_MAX, Segment, Segments, StandIns, tiles
from rankmem_protos.devices import HOST_MEMORY

_U64: Final = 2**64 - 1
_OF_BLOCKS: Final = ("alloc", "free_requested", "free_completed")
_ROUNDED: Final = (
    "blocks in segments have their requested size rounded up to 512 bytes: the allocator's own is not "
    "recorded"
)
_COVERED: Final = (
    "{count} of {total} segments of rank {rank} are made up, for blocks whose segment was not recorded"
)
_WITHIN: Final = (
    "{count} live blocks of {device} of rank {rank} ({total} bytes) lie within others, which a snapshot "
    "cannot show; the segments omit them"
)
_WITHOUT_ADDRESS: Final = (
    "{count} blocks of {device} were recorded without an address: they have made-up ones, in made-up segments"
)
_BLOCKS_ALONE: Final = "such a file consists of blocks with an address"
_ON_CPU: Final = (
    "host memory is shown as device {number}: its blocks lie in made-up segments, and each free is shown as "
    "requested and completed, as viewers expect"
)


def write_torch_snapshot(selection: Selection, out: Path) -> ExportResult:
    """Writes one pickle, or a folder with one for each rank."""
    result = ExportResult()
    found = with_idle_devices(selection, tracks(selection, include_idle=True))
    ranks = {label: list(of_rank) for label, of_rank in groupby(found, key=Track.label)}
    file_peaks: list[FilePeak] = []
    holds = "a pickle holds one rank"
    for of_rank, path in output_files(selection, out, ranks, ".pickle", holds, result):
        file_peaks += _write_rank(selection, of_rank, path, result)
    check_file_peaks("torch-snapshot", file_peaks, result, _BLOCKS_ALONE)
    result.remarks.append(_ROUNDED)
    return result


def _write_rank(
    selection: Selection, of_rank: list[Track], path: Path, result: ExportResult
) -> list[FilePeak]:
    """The file; gives what each of its devices reaches in it."""
    devices = _numbered(of_rank)
    stacks = Stacks(selection)
    ends: dict[int, Segments] = {}
    with path.open("wb") as file:
        pickle = PickleStream(file)
        writer = _Writer(pickle, stacks)
        with pickle.dictionary():
            pickle.value("device_traces")
            with pickle.items() as traces:
                for number in range(max(devices) + 1):
                    with traces.item():
                        ends[number] = writer.trace(selection, devices.get(number), result)
            pickle.value("segments")
            with pickle.items() as items:
                for number, track in devices.items():
                    writer.segments(selection, track, number, ends[number], items.item, result)
            _annotations(pickle, selection, of_rank[0], next(iter(devices)))
            pickle.value("allocator_settings")
            pickle.nested(_settings(selection, of_rank[0]))
            _identity(pickle, selection, of_rank[0], devices)
        pickle.end()
    for number, track in devices.items():
        remark = _ON_CPU.format(number=number)
        if track.device_type in HOST_MEMORY and remark not in result.remarks:
            result.remarks.append(remark)
    return [FilePeak(track, writer.running_by_track[track].highest) for track in devices.values()]


def _numbered(of_rank: list[Track]) -> dict[int, Track]:
    """The devices by index; host memory after the last."""
    devices: dict[int, Track] = {}
    for track in sorted(of_rank, key=lambda one: (":" not in one.device, one.device)):
        index = track.device.partition(":")[2]
        number = int(index) if index.isdecimal() else max(devices, default=-1) + 1
        devices[number if number not in devices else max(devices) + 1] = track
    return devices


class _Writer:
    """Writes the traces and segments of one pickle; each stack once."""

    def __init__(self, pickle: PickleStream, stacks: Stacks) -> None:
        self._pickle = pickle
        self._stacks = stacks
        self._written: dict[int | None, bytes] = {}
        self._stand_ins: dict[str, StandIns] = {}
        self.running_by_track: dict[Track, RunningBytes] = {}
        """The bytes of each device, as a reader of the file counts them."""

    def trace(self, selection: Selection, track: Track | None, result: ExportResult) -> Segments:
        """Writes a device's list of events; returns the segments at its end."""
        segments = Segments()
        with self._pickle.items() as events:
            if track is None:
                return segments
            log = Log(selection, track)
            for row in log.segment_events_before():
                segments.apply(row["action"], _unsigned(row["address"]), *_segment_of(row))
            stand_ins = self._stand_ins.setdefault(track.device, StandIns())
            held = [stand_ins.placed(row) for row in log.held(track.seq_first - 1)]
            _see(segments, held)
            running = self.running_by_track[track] = RunningBytes(
                sum(row["size_bytes"] for row in held if _is_placed(row))
            )
            on_cpu = track.device_type in HOST_MEMORY
            with_category = log.has_meanings()
            for batch in log.events():
                self._stacks.load(batch["stack_id"].to_pylist())
                for event in batch.to_pylist():
                    row = stand_ins.placed(event)
                    segments.apply(row["action"], _unsigned(row["address"]), *_segment_of(row))
                    if row["action"] in _OF_BLOCKS and not _is_placed(row):
                        continue
                    if row["action"] == "alloc":
                        _see(segments, [row])
                    running.add(_change(row))
                    for action in _actions(row["action"], on_cpu):
                        with events.item():
                            self._event(row, action, with_category)
                    stand_ins.after(row)
                    result.add("events")
        return segments

    def _event(self, row: Mapping[str, Any], action: str, with_category: bool) -> None:
        pickle = self._pickle
        address = _unsigned(row["address"])
        where = {"device_free": row["device_free_bytes"] or 0} if action == "oom" else {"addr": address}
        facts: dict[str, Plain] = {
            "action": action,
            **where,
            "size": row["size_bytes"] or 0,
            "stream": _unsigned(row["stream"]),
            "time_us": row["time_ns"] // 1000,
        }
        if with_category:
            # The web viewer fails on categories without any "unknown": frees have that.
            facts["category"] = row["category"] or "unknown"
        with pickle.facts(facts):
            if row["pool"] is not None:
                pickle.value("pool_id")
                pickle.pair(*_pool(row["pool"]))
            pickle.value("frames")
            self._frames(row["stack_id"])

    def _frames(self, stack_id: int | None) -> None:
        pickle = self._pickle
        if stack_id in self._written:
            pickle.again(self._written[stack_id])
            return
        with pickle.items() as frames:
            for frame in self._stacks.of(stack_id):
                facts: dict[str, Plain] = {"filename": frame.file_path, "line": frame.line_number}
                with frames.item(), pickle.facts(facts | {"name": frame.function}):
                    pass
        self._written[stack_id] = pickle.remember()

    def segments(
        self,
        selection: Selection,
        track: Track,
        number: int,
        segments: Segments,
        item: Callable[[], Any],
        result: ExportResult,
    ) -> None:
        """Writes a device's segments at the end of its trace, with their blocks."""
        stand_ins = self._stand_ins.setdefault(track.device, StandIns())
        held = [stand_ins.placed(row) for row in Log(selection, track).held(track.seq_last)]
        if stand_ins.num_blocks:
            remark = _WITHOUT_ADDRESS.format(count=stand_ins.num_blocks, device=track.device)
            result.remarks.append(remark)
        self.running_by_track[track].reach(sum(row["size_bytes"] for row in held))
        for row in held:
            row["address"] = _unsigned(row["address"])
        held.sort(key=lambda row: (row["address"], -row["allocation_id"]))
        _see(segments, held)
        self._stacks.load(row["stack_id"] for row in held)
        found = segments.at_end()
        addresses = [row["address"] for row in held]
        placed: set[int] = set()
        for segment in found:
            begin, end = bisect_left(addresses, segment.address), bisect_left(addresses, segment.end)
            with item():
                placed |= self._segment(segment, number, held[begin:end])
        if left := [row["size_bytes"] for row in held if row["allocation_id"] not in placed]:
            result.remarks.append(
                _WITHIN.format(count=len(left), device=track.device, rank=track.rank, total=sum(left))
            )
        covers = sum(segment.is_cover for segment in found)
        if covers and track.device_type not in HOST_MEMORY:
            result.remarks.append(_COVERED.format(count=covers, total=len(found), rank=track.rank))
        result.add("segments", len(found))
        result.add("live blocks", len(held))

    def _segment(self, segment: Segment, number: int, held: list[dict[str, Any]]) -> set[int]:
        """Writes a segment with its blocks; returns the ids of those placed in it."""
        pickle, value = self._pickle, self._pickle.value
        tiled = list(tiles(segment, held))
        used = [tile for tile in tiled if tile.held is not None]
        allocated = [tile for tile in used if tile.held and not tile.held["awaiting_free"]]
        facts: dict[str, Plain] = {
            "device": number,
            "address": segment.address,
            "total_size": segment.size_bytes,
            "allocated_size": sum(tile.size_bytes for tile in allocated),
            "active_size": sum(tile.size_bytes for tile in used),
            "requested_size": sum(tile.held["size_bytes"] for tile in used if tile.held),
            "stream": segment.stream,
            "segment_type": "small" if segment.size_bytes <= SMALL_BYTES_MAX else "large",
            "is_expandable": segment.is_expandable,
        }
        with pickle.facts(facts):
            value("segment_pool_id")
            pickle.pair(*_pool(segment.pool))
            value("frames")
            self._frames(None)
            value("blocks")
            with pickle.items() as blocks:
                for tile in tiled:
                    with blocks.item():
                        self._block(tile.address, tile.size_bytes, tile.held)
        return {tile.held["allocation_id"] for tile in used if tile.held}

    def _block(self, address: int, size_bytes: int, held: Mapping[str, Any] | None) -> None:
        state = "inactive"
        if held is not None:
            state = "active_pending_free" if held["awaiting_free"] else "active_allocated"
        facts: dict[str, Plain] = {
            "address": address,
            "size": size_bytes,
            "requested_size": size_bytes if held is None else held["size_bytes"],
            "state": state,
        }
        with self._pickle.facts(facts):
            self._pickle.value("frames")
            self._frames(None if held is None else held["stack_id"])


def _annotations(pickle: PickleStream, selection: Selection, track: Track, number: int) -> None:
    """Writes the rank's named ranges as the starts and ends that ``record_function`` leaves, by time."""
    ends: list[tuple[int, str, str]] = []
    for row in rows_of(Log(selection, track).markers()):
        ends.append((row["started_ns"], "START", row["name"]))
        if row["ended_ns"] is not None:
            ends.append((row["ended_ns"], "END", row["name"]))
    pickle.value("external_annotations")
    with pickle.items() as items:
        for time_ns, stage, name in sorted(ends, key=lambda one: one[0]):
            if not track.first_ns <= time_ns <= track.last_ns:
                continue
            facts: dict[str, Plain] = {"stage": stage, "name": name, "device": number}
            with items.item(), pickle.facts(facts | {"time_us": time_ns // 1000}):
                pass


def _settings(selection: Selection, track: Track) -> dict[str, Any]:
    """The allocator's settings: a snapshot's own, or the environment variable."""
    rows = selection.rows("settings", **track.whose())
    for row in rows:
        with contextlib.suppress(ValueError):
            settings = json.loads(row["settings"])
            if isinstance(settings, dict):
                return settings
    return {"PYTORCH_CUDA_ALLOC_CONF": rows[0]["settings"]} if rows else {}


def _identity(pickle: PickleStream, selection: Selection, track: Track, devices: Mapping[int, Track]) -> None:
    """Writes the rank and what the session lacks, which PyTorch's own do not have; viewers ignore it."""
    facts: dict[str, Plain] = {
        "session_id": track.session_id,
        "attempt": track.attempt,
        "rank": track.rank,
        "host_name": track.host_name,
        "pid": track.pid,
        "devices": ",".join(f"{number}={one.device}" for number, one in devices.items()),
        "missing": "; ".join(selection.missing),
    }
    pickle.value("rankmem")
    with pickle.facts(facts):
        pass


def _actions(action: str, on_cpu: bool) -> tuple[str, ...]:
    return ("free_requested", "free_completed") if on_cpu and action == "free_completed" else (action,)


def _is_placed(row: Mapping[str, Any]) -> bool:
    """Whether the block has an address; those without would all be one."""
    return row["address"] is not None


def _change(row: Mapping[str, Any]) -> int:
    """Bytes that the event adds for a reader of the trace."""
    sign = {"alloc": 1, "free_completed": -1}.get(row["action"], 0)
    return sign * int(row["size_bytes"] or 0)


def _see(segments: Segments, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        if row["address"] is not None:
            segments.saw_block(_unsigned(row["address"]), row["size_bytes"])


def _segment_of(row: Mapping[str, Any]) -> tuple[int, int, str | None]:
    return row["size_bytes"] or 0, _unsigned(row["stream"]), row["pool"]


def _pool(pool: str | None) -> tuple[int, int]:
    """``first.second`` as a pair; (0, 0), the default pool, for anything else."""
    first, _, second = (pool or "").partition(".")
    if not (first.isdecimal() and (second or "0").isdecimal()):
        return (0, 0)
    return int(first), int(second or 0)


def _unsigned(number: int | None) -> int:
    return 0 if number is None else number & _U64
