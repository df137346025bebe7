"""Snapshots of other people's jobs: the reader says what is known of them, the fallback drains them exactly.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import Action, Kind
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_agent.tap.accelerators import CUDA, NPU, Accelerator
from rankmem_agent.tap.snapshot_blocks import Figures
from rankmem_agent.tap.snapshot_drain import SnapshotDrain
from rankmem_agent.tap.snapshot_format import ACTION_OF_NAME, DeviceSnapshot, baseline, parse, replay
from rankmem_imports.files.plain_pickle import load_plain
from snapshot_files import read
from spool_bytes import records_of

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings" / "torch_snapshot"
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/torch_snapshot"),
]
NAMES = (
    "complete_small.pickle",
    "forward_fp32.pickle",
    "forward_large.pickle",
    "torch20_no_history.pickle",
    "torch20_oom.pickle",
    "npu_expandable.pkl",
    "npu_empty_cache.pkl",
)


def only_device(name: str) -> DeviceSnapshot:
    [device] = read(FOLDER / name)
    return device


def ranges_of(segments: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Address ranges as (begin, end), joined where they touch."""
    joined: list[tuple[int, int]] = []
    for begin, size in sorted(segments):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], begin + size)
        else:
            joined.append((begin, begin + size))
    return joined


@pytest.mark.parametrize("name", NAMES)
def test_replaying_the_trace_from_its_baseline_ends_in_the_recorded_state(name: str) -> None:
    device = only_device(name)
    state = replay(baseline(device), device.events)
    assert state.residue == 0
    assert {a: (b.requested_bytes, b.awaiting_free) for a, b in state.blocks.items()} == {
        a: (b.requested_bytes, b.awaiting_free) for a, b in device.blocks.items()
    }
    assert ranges_of([(s.address, s.size_bytes) for s in state.segments.values()]) == ranges_of(
        [(s.address, s.size_bytes) for s in device.segments]
    )


def test_a_recording_from_process_start_has_an_empty_baseline_and_its_known_end() -> None:
    device = only_device("complete_small.pickle")
    assert len(device.events) == 97
    start = baseline(device)
    assert (start.blocks, start.segments) == ({}, {})
    end = replay(start, device.events)
    assert (len(end.blocks), end.requested_bytes()) == (10, 31_719_428)
    assert (len(end.segments), end.reserved_bytes()) == (9, 3_781_165_056)


def test_a_history_switched_on_late_is_completed_from_the_segments() -> None:
    device = only_device("forward_fp32.pickle")
    assert len(device.events) == 2_043
    start = baseline(device)
    assert (len(start.blocks), start.requested_bytes()) == (137, 523_811_840)


def test_the_old_form_has_addresses_and_stacks_all_the_same() -> None:
    device = only_device("torch20_oom.pickle")
    assert [event.action for event in device.events] == [Action.SNAPSHOT]
    in_use = sum(block.block_bytes for block in device.blocks.values() if not block.awaiting_free)
    assert in_use == 11_840_159_744 == device.events[0].size_bytes
    assert len(device.blocks) == 460
    assert all(block.frames for block in device.blocks.values())


def test_devices_without_events_are_left_out() -> None:
    for name in ("npu_expandable.pkl", "npu_empty_cache.pkl"):
        device = only_device(name)
        assert device.device_index == 0
        assert device.events[0].time_us is None


class Playback:
    """A recording as a history that grows: each look shows more of the trace, in a ring of limited length."""

    def __init__(self, raw: dict[str, Any], chunk: int, ring_entries: int) -> None:
        self.raw, self.chunk, self.ring_entries, self.shown = raw, chunk, ring_entries, 0
        self.ring: list[dict[str, Any]] = []
        [self.device] = parse(raw)
        self.state = baseline(self.device)

    def is_recording(self) -> bool:
        return True

    def start(self) -> None:
        raise AssertionError("it is on already")

    def allocations(self) -> int:
        return self.shown

    def device_facts(self, device_index: int) -> dict[str, Any]:
        return {"name": "recorded"}

    def pinned_bytes(self) -> tuple[int, int] | None:
        return None

    def peaks(self, device_index: int) -> Figures:
        return Figures()

    def look(self) -> dict[str, Any]:
        new = self.raw["device_traces"][0][self.shown : self.shown + self.chunk]
        self.shown += len(new)
        replay(self.state, self.device.events[self.shown - len(new) : self.shown])
        self.ring = [*self.ring, *new][-self.ring_entries :]
        shown = list(self.ring)
        mark = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0}
        self.ring = [*self.ring, {**mark, "time_us": new[-1].get("time_us") if new else None}]
        return {"segments": self._segments(), "device_traces": [shown]}

    def _segments(self) -> list[dict[str, Any]]:
        """The blocks alive, each as a segment of its own: what the drain needs of them."""
        return [
            {
                "device": 0, "address": block.address, "total_size": block.requested_bytes,
                "stream": block.stream, "allocated_size": 0, "active_size": 0,
                "blocks": [
                    {
                        "address": block.address, "size": block.requested_bytes,
                        "requested_size": block.requested_bytes,
                        "state": "active_awaiting_free" if block.awaiting_free else "active_allocated",
                    }
                ],
            }
            for block in self.state.blocks.values()
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "accelerator"),
    [
        ("complete_small.pickle", CUDA),
        ("forward_fp32.pickle", CUDA),
        ("forward_large.pickle", CUDA),
        ("npu_empty_cache.pkl", NPU),
        ("npu_expandable.pkl", NPU),
    ],
)
@pytest.mark.parametrize("chunk", [97, 1_500])
def test_draining_a_recording_piece_by_piece_gives_every_event_once(
    name: str, accelerator: Accelerator, chunk: int, tmp_path: Path
) -> None:
    raw = load_plain(FOLDER / name)
    history = Playback(raw, chunk, ring_entries=2_000)
    older = {(block.address, block.requested_bytes) for block in history.state.blocks.values()}
    drain = SnapshotDrain(history, PythonSpoolWriter(tmp_path / "spool", 2**28), lambda _: None, accelerator)
    drain.attach()
    while history.shown < len(raw["device_traces"][0]):
        drain.drain()
    drain.close()
    records = [record for _, record in sorted(records_of(tmp_path / "spool").items())]
    events = [(r["action"], r["a"], r["b"], r["c"]) for r in records if r["kind"] == Kind.EVENT]
    of_devices = (Kind.EVENT, Kind.PREEXISTING, Kind.COUNTERS, Kind.PEAKS)
    assert {r["device_type"] for r in records if r["kind"] in of_devices} == {accelerator.device_type}
    assert events == [
        (ACTION_OF_NAME[e["action"]], e["addr"], e["size"], e["stream"]) for e in raw["device_traces"][0]
    ]
    before = {
        (r["a"], r["b"]) for r in records if r["kind"] == Kind.PREEXISTING and r["action"] == Action.ALLOC
    }
    assert before == older
    assert not [r for r in records if r["kind"] == Kind.LOST]
    stacks = {r["e"] for r in records if r["kind"] == Kind.CALL_END}
    assert stacks
    assert 0 not in stacks
    assert layout.UNKNOWN not in stacks
