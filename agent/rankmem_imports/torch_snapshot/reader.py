"""PyTorch's memory snapshots as recordings: one rank a file, with its devices and the whole trace.

Stage: readers; the process of ``rankmem import``. In: a pickle of ``torch.cuda.memory._snapshot()`` (torch
2.0 to today, torch_npu, or ``rankmem export torch-snapshot``). Out: the parts of one rank. Blocks and
segments that the trace did not see made come first, as older ones
(``rankmem_imports.torch_snapshot.trace``); then the events of all devices in order of time, with
annotations; then the allocator's own figures of the end, against which the replay is held. Misfits are
counted: trace and segments are not taken at one instant.

Memory: the snapshot as Python objects, about 450 bytes an event, until it became records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rankmem_agent.spool.layout import Action, DeviceType, Kind
from rankmem_agent.tap import snapshot_format as torch_snapshot
from rankmem_agent.tap.snapshot_format import Block, DeviceSnapshot, Segment
from rankmem_imports.files.plain_pickle import load_plain
from rankmem_imports.recording import Closing, Identity, Part, RankRecording
from rankmem_imports.replay import PART_RECORDS, Replay
from rankmem_imports.torch_snapshot.facts import facts_of, identity_of
from rankmem_imports.torch_snapshot.markers import first_annotation_ns, with_markers
from rankmem_imports.torch_snapshot.recognition import NAME
from rankmem_imports.torch_snapshot.trace import (
    ANNOTATE,
    DeviceTrace,
    StackInterner,
    blocks_before,
    segments_before,
    trace_of,
)
from rankmem_protos.bounds import SIZE_BYTES_MAX
from rankmem_ship.pairing.devices import DEVICES_MAX, device_name
from rankmem_ship.pairing.state import Array, PairingState
from rankmem_ship.spool_reader.segments import RECORD_DTYPE

_TYPE_OF_NAME: Final = {
    "cuda": DeviceType.CUDA,
    "npu": DeviceType.NPU,
    "xpu": DeviceType.XPU,
    "cpu": DeviceType.CPU,
    "pinned": DeviceType.PINNED,
    "privateuseone": DeviceType.PRIVATEUSE1,
}
_NAMED: Final = re.compile(r"(\d+)=([a-z]+(?::\d{1,3})?)")


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """The one rank."""
    (path,) = files
    return (SnapshotRecording(path),)


class SnapshotRecording:
    """One snapshot."""

    def __init__(self, path: Path) -> None:
        self.source = path
        self.facts = facts_of(path)
        self._closing = Closing(events=0)

    def parts(self, identity: Identity) -> Iterator[Part]:
        """Older blocks, events, figures."""
        replay = Replay(identity)
        log = _SnapshotLog(load_plain(self.source), str(self.source), replay)
        yield from log.parts()
        self._closing = log.closing()

    def closing(self) -> Closing:
        """Compares replay and snapshot."""
        return self._closing


class _SnapshotLog:
    """A snapshot as records of one log.

    Raises:
        RankmemError: INVALID if it is not a snapshot.
    """

    def __init__(self, raw: Any, source: str, replay: Replay) -> None:
        self._replay = replay
        try:
            self._devices = _devices_of(raw)
            self._remarks = _remarks_of(raw, self._devices)
            self._records = self._fill(raw)
        except torch_snapshot.MALFORMED as exc:
            raise torch_snapshot.no_snapshot(source, exc) from exc
        for device in self._devices:
            device.release()

    def parts(self) -> Iterator[Part]:
        """The whole log, paired."""
        records = self._records
        for begin in range(0, len(records), PART_RECORDS):
            self._replay.records(records[begin : begin + PART_RECORDS])
            yield self._replay.part()
        end_ns = int(records["time_ns"][-1]) if len(records) else 0
        for device in self._devices:
            # Not the allocator's allocated and active: known at the end alone, they would pass for the peak.
            self._replay.figures(
                time_ns=end_ns,
                device_type=device.code >> 8,
                device_index=device.code & 255,
                requested=sum(block.requested_bytes for block in device.end.blocks.values()),
            )
        yield self._replay.part(final=True)

    def closing(self) -> Closing:
        """After the last part."""
        state = self._replay.state
        misfits = [found for device in self._devices for found in device.misfits(state)]
        is_late = any(device.older or device.num_older_segments for device in self._devices)
        unexplained = self._replay.unexplained_bytes
        return Closing(
            events=state.num_events,
            unexplained_bytes=unexplained,
            complete=state.num_events > 0 and not is_late and not misfits and unexplained == 0,
            remarks=(*self._remarks, *misfits),
        )

    def _fill(self, raw: dict[str, Any]) -> Array:
        """Records what is older; returns the records of all devices, with markers."""
        interner = StackInterner(self._replay.strings)
        starts = [int(d.trace.records["time_ns"][0]) for d in self._devices if len(d.trace.records)]
        # Before the first event, so that older blocks have an instant of their own.
        start_ns = max(min(starts) - 1, 0) if starts else first_annotation_ns(raw.get("external_annotations"))
        facts = json.dumps({"source": NAME} | _settings_of(raw))
        for device in self._devices:
            device.record_older(self._replay, interner, start_ns, facts)
            interner.set_stacks(device.trace)
        records = np.concatenate([d.trace.records for d in self._devices] or [np.zeros(0, RECORD_DTYPE)])
        places = np.arange(len(records))
        if len(self._devices) > 1:
            order = np.argsort(records["time_ns"], kind="stable")
            records, places[order] = records[order], np.arange(len(records))
        traces = [d.trace for d in self._devices]
        ends = np.cumsum([len(trace.records) for trace in traces])
        with_them = with_markers(
            records,
            raw.get("external_annotations"),
            list(zip(traces, np.split(places, ends[:-1]), strict=True)) if traces else (),
            self._replay.strings,
        )
        with_them["time_ns"] = np.maximum(with_them["time_ns"], min(starts, default=0))
        return with_them


@dataclass(slots=True, kw_only=True)
class _Device:
    """A device of a snapshot."""

    code: int
    """Type and index, as pairing has it."""
    end: DeviceSnapshot
    """The state at the end."""
    trace: DeviceTrace
    older: list[Block]
    """Blocks alive before the trace."""
    num_unknown_pools: int
    """Segments of which nothing tells whether they were a private pool's."""
    num_older_segments: int = 0
    segment_misfits: int = 0
    """Events of segments that do not fit those at the end."""

    @property
    def name(self) -> str:
        """As in the column device."""
        return device_name(self.code)

    def record_older(self, replay: Replay, interner: StackInterner, start_ns: int, facts: str) -> None:
        """Records the device and the blocks and segments from before the trace."""
        kind, index = divmod(self.code, 256)
        replay.record(
            Kind.DEVICE,
            time_ns=start_ns,
            device_type=kind,
            device_index=index,
            facts=replay.strings.intern(facts),
        )
        segments, self.segment_misfits = segments_before(self.end, self.trace)
        self.num_older_segments = len(segments)
        for segment in segments:
            _record_older(replay, start_ns, self.code, Action.SEGMENT_ALLOC, segment.size_bytes, segment, 0)
        for block in self.older:
            stack = interner.stack(block.frames)
            _record_older(replay, start_ns, self.code, Action.ALLOC, block.requested_bytes, block, stack)

    def release(self) -> None:
        """Frees the dictionaries of the trace: they are most of the memory."""
        self.trace = DeviceTrace(records=self.trace.records[:0], entries=(), has_times=True, ignored=())

    def misfits(self, state: PairingState) -> list[str]:
        """Differences between the replayed state and the snapshot's segments, a sentence each."""
        found = []
        [number] = np.flatnonzero(state.devices["code"] == self.code).tolist()
        live = state.live[state.live["device"] == number]
        replayed = dict(zip(live["address"].tolist(), live["size"].tolist(), strict=True))
        listed = {where: block.requested_bytes for where, block in self.end.blocks.items()}
        for who, others, what in (
            (replayed, listed, "alive after the trace, not in segments"),
            (listed, replayed, "alive in segments, not after the trace"),
        ):
            only = [size for where, size in who.items() if where not in others]
            if only:
                found.append(f"{self.name}: {len(only)} blocks ({sum(only)} bytes) are {what}")
        differ = sum(replayed[where] != listed[where] for where in replayed.keys() & listed.keys())
        if differ:
            found.append(f"{self.name}: {differ} blocks have another size in segments than in the trace")
        reserved = int(state.devices["reserved"][number])
        held = sum(segment.size_bytes for segment in self.end.segments)
        if reserved != held:
            found.append(f"{self.name}: {reserved} bytes reserved after the trace, {held} in segments")
        if self.segment_misfits:
            found.append(
                f"{self.name}: {self.segment_misfits} events of segments do not fit those at the end"
            )
        return found


def _record_older(
    replay: Replay,
    time_ns: int,
    code: int,
    action: Action,
    size_bytes: int,
    what: Block | Segment,
    stack: int,
) -> None:
    """Records a block or segment that is older than the trace."""
    replay.record(
        Kind.PREEXISTING,
        time_ns=time_ns,
        action=action,
        device_type=code >> 8,
        device_index=code & 255,
        address=what.address,
        size_bytes=size_bytes,
        stream=what.stream,
        pool=what.pool,
        stack_id=stack,
        block_bytes=what.block_bytes if isinstance(what, Block) else 0,
    )


def _devices_of(raw: Any) -> list[_Device]:
    """The devices that have events or segments."""
    parts = torch_snapshot.split(raw)
    numbers = [number for number, _, _ in parts]
    if len(numbers) > DEVICES_MAX or any(not 0 <= number <= DEVICES_MAX for number in numbers):
        raise ValueError(f"{len(numbers)} devices, the last {numbers[-1]}")
    codes = _codes_of(raw, numbers)
    devices = []
    for number, entries, segments in parts:
        kind, index = divmod(codes[number], 256)
        end = torch_snapshot.device_of(number, segments)
        trace = trace_of(entries, kind, index, end.segments)
        if sum(block.requested_bytes for block in end.blocks.values()) > SIZE_BYTES_MAX:
            raise ValueError("blocks of more bytes than any device has")
        if sum(segment.size_bytes for segment in end.segments) > SIZE_BYTES_MAX:
            raise ValueError("segments of more bytes than any device has")
        devices.append(
            _Device(
                code=codes[number],
                end=end,
                trace=trace,
                older=blocks_before(end, trace),
                num_unknown_pools=torch_snapshot.count_unknown_pools(entries, segments),
            )
        )
    return devices


def _codes_of(raw: dict[str, Any], numbers: Sequence[int]) -> dict[int, int]:
    """Type and index of each device. PyTorch does not state the type: CUDA, unless it is torch_npu's form."""
    named = dict(_NAMED.findall(str(identity_of(raw).get("devices"))))
    kind = DeviceType.NPU if _is_of_npu(raw) else DeviceType.CUDA
    codes = {}
    for number in numbers:
        name, _, index = named.get(str(number), "").partition(":")
        codes[number] = (
            _TYPE_OF_NAME[name] << 8 | int(index or 0) if name in _TYPE_OF_NAME else kind << 8 | number
        )
    return codes


def _is_of_npu(raw: dict[str, Any]) -> bool:
    """Without times and settings, though with pools of segments, as torch 2.1's; but there the default stream
    is 0, and of torch_npu a handle."""
    if "allocator_settings" in raw or not any("segment_pool_id" in segment for segment in raw["segments"]):
        return False
    entries = [entry for trace in raw["device_traces"] for entry in trace]
    if any("time_us" in entry for entry in entries):
        return False
    return all(one["stream"] for one in (*raw["segments"], *entries))


def _settings_of(raw: dict[str, Any]) -> dict[str, str]:
    settings = raw.get("allocator_settings")
    if not settings and any(segment.get("is_expandable") for segment in raw["segments"]):
        settings = {"expandable_segments": True}  # torch_npu's snapshots have no settings
    return {"settings": json.dumps(settings)} if settings else {}


def _remarks_of(raw: dict[str, Any], devices: Sequence[_Device]) -> list[str]:
    """Remarks on the recording itself, a sentence each."""
    found = []
    for device in devices:
        if device.older:
            total = sum(block.requested_bytes for block in device.older)
            found.append(
                f"{device.name}: {len(device.older)} blocks ({total} bytes) are older than the trace"
            )
        if device.num_unknown_pools and any(segment.pool for segment in device.end.segments):
            found.append(
                f"{device.name}: of the segments given back before the end ({device.num_unknown_pools}) "
                "nothing tells the private pool: they count as the default pool's"
            )
    if any(len(device.trace.records) and not device.trace.has_times for device in devices):
        found.append("the recording has no times: its events stand a microsecond apart, in its order")
    ignored = sum(entry["action"] != ANNOTATE for device in devices for _, entry in device.trace.ignored)
    if ignored:
        found.append(f"{ignored} entries of the trace are not events of an allocator")
    if not any(len(device.trace.records) for device in devices):
        found.append("the recording has no events, only what was alive at its end")
    if raw.get("host_traces"):
        found.append("host_traces (pinned memory) are not read")
    return found
