"""The snapshot reader on constructed snapshots: baselines, races, pools, and what is no snapshot."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_history import FakeHistory
from rankmem_agent.spool.layout import Action
from rankmem_agent.tap.snapshot_format import baseline, events_of, packed_pool, parse, replay
from rankmem_protos.errors import Code, RankmemError
from repetitions import examples
from snapshot_files import read


@examples(0.6)
@given(
    steps=st.lists(st.sampled_from(["alloc", "free", "request", "complete"]), max_size=60),
    late=st.integers(0, 40),
)
def test_the_baseline_of_a_late_start_is_what_was_alive_then(steps: list[str], late: int) -> None:
    history = FakeHistory()
    alive: dict[int, tuple[int, bool]] = {}
    for number, step in enumerate([*steps[:late], "start", *steps[late:]]):
        waiting = [a for a, block in history.live[0].items() if block["state"] == "active_awaiting_free"]
        usable = [a for a in history.live[0] if a not in waiting]
        if step == "start":
            alive = {a: (b["size"], a in waiting) for a, b in history.live[0].items()}
            history.start()
        elif step == "alloc":
            history.alloc(0x1000 * (number + 1), number + 1)
        elif step == "free" and usable:
            history.free(usable[0])
        elif step == "request" and usable:
            history.free_requested(usable[-1])
        elif step == "complete" and waiting:
            history.free_completed(waiting[0])
    for device in parse(history.look()):
        state = baseline(device)
        assert state.residue == 0
        assert {a: (b.requested_bytes, b.awaiting_free) for a, b in state.blocks.items()} == alive


def test_an_event_between_the_two_locks_is_counted_as_residue_and_breaks_nothing() -> None:
    history = FakeHistory()
    history.start()
    history.alloc(0x1000, 10)
    history.between = lambda: history.free(0x1000)
    history.alloc(0x2000, 20)
    [device] = parse(history.look())
    state = baseline(device)
    assert state.residue == 1
    assert state.blocks == {}


def test_segments_of_an_expandable_range_are_taken_apart_and_joined() -> None:
    def entry(action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "stream": 0}

    segment = {
        "device": 0, "address": 100, "total_size": 60, "stream": 0, "allocated_size": 0, "active_size": 0,
        "blocks": [{"size": 60, "state": "inactive"}],
    }  # fmt: skip
    trace = [entry("segment_map", 120, 40), entry("segment_map", 160, 20), entry("segment_unmap", 160, 20)]
    [device] = parse({"segments": [segment], "device_traces": [trace]})
    start = baseline(device)
    assert {s.address: s.size_bytes for s in start.segments.values()} == {100: 20}
    assert replay(start, device.events).reserved_bytes() == 60
    assert start.residue == 0


def test_pools_streams_and_ooms_are_kept_and_annotations_are_no_events() -> None:
    trace = [
        {"action": "alloc", "addr": 1, "size": 2, "stream": -1, "pool_id": (3, 4), "time_us": 9},
        {"action": "annotate", "addr": 1, "size": 0, "stream": 0},
        {"action": "oom", "size": 7, "stream": 0, "device_free": 5},
    ]
    alloc, oom = events_of(trace)
    assert (alloc.pool, alloc.stream, alloc.time_us) == (3 << 32 | 4, 2**64 - 1, 9)
    assert (oom.action, oom.address, oom.size_bytes, oom.device_free_bytes) == (Action.OOM, 0, 7, 5)
    assert packed_pool(None) == packed_pool((0, 0)) == 0


def private_segment(address: int, size: int) -> dict[str, Any]:
    return {
        "device": 0, "address": address, "total_size": size, "stream": 0, "segment_pool_id": (1, 2),
        "allocated_size": 0, "active_size": 0, "blocks": [{"size": size, "state": "inactive"}],
    }  # fmt: skip


def events(*entries: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"action": action, "addr": addr, "size": size, "stream": 0} for action, addr, size in entries]


def test_events_are_of_the_private_pool_in_whose_segment_they_lie() -> None:
    trace = events(
        ("segment_alloc", 100, 50), ("alloc", 120, 10), ("alloc", 150, 10), ("free_completed", 120, 10)
    )
    [device] = parse({"segments": [private_segment(100, 50)], "device_traces": [trace]})
    private = 1 << 32 | 2
    assert [event.pool for event in device.events] == [private, private, 0, private]
    assert device.num_unknown_pools == 0


def test_what_lay_there_before_a_private_segment_came_is_of_no_known_pool() -> None:
    trace = events(
        ("segment_alloc", 100, 80), ("alloc", 120, 10), ("free_completed", 120, 10),
        ("segment_free", 100, 80), ("segment_alloc", 100, 50), ("alloc", 120, 10),
    )  # fmt: skip
    [device] = parse({"segments": [private_segment(100, 50)], "device_traces": [trace]})
    assert [bool(event.pool) for event in device.events] == [False] * 4 + [True] * 2
    assert device.num_unknown_pools == 1


def test_of_an_expandable_private_segment_pages_that_came_later_cut_earlier_ones_out() -> None:
    trace = events(
        ("alloc", 110, 5), ("segment_unmap", 120, 20), ("segment_map", 120, 20), ("alloc", 130, 5),
        ("alloc", 150, 5),
    )  # fmt: skip
    trace.insert(1, events(("alloc", 125, 5))[0])  # in pages that were given back: nothing tells its pool
    [device] = parse({"segments": [private_segment(100, 60)], "device_traces": [trace]})
    assert [bool(event.pool) for event in device.events] == [True, False, False, True, True, True]
    assert device.num_unknown_pools == 1


def test_a_trace_that_tells_pools_is_believed_and_torch_2_0_knows_none() -> None:
    told = events(("segment_alloc", 100, 50), ("alloc", 100, 5), ("segment_free", 300, 9))
    for entry in told:
        entry["pool_id"] = (0, 0)
    told[1]["pool_id"] = (7, 7)
    [device] = parse({"segments": [private_segment(100, 50)], "device_traces": [told]})
    assert [event.pool for event in device.events] == [0, packed_pool((7, 7)), 0]
    assert device.num_unknown_pools == 0
    old = private_segment(100, 50)
    del old["segment_pool_id"]
    [device] = parse({"segments": [old], "device_traces": [events(("alloc", 100, 5))]})
    assert (device.events[0].pool, device.num_unknown_pools) == (0, 1)


GOOD: dict[str, Any] = {
    "segments": [
        {
            "device": 0, "address": 1, "total_size": 2, "stream": 0, "allocated_size": 2, "active_size": 2,
            "blocks": [{"size": 2, "state": "active_allocated"}],
        }
    ],
    "device_traces": [[{"action": "alloc", "addr": 1, "size": 2, "stream": 0}]],
}  # fmt: skip


@pytest.mark.parametrize(
    "path", [("segments",), ("device_traces",), ("segments", 0, "blocks"), ("segments", 0, "address")]
)
@pytest.mark.parametrize("value", [None, 5, "x", [None], {"a": 1}])
def test_what_is_no_snapshot_is_refused_and_never_crashes(path: tuple[Any, ...], value: Any) -> None:
    raw = copy.deepcopy(GOOD)
    inner: Any = raw
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    if path[-1] == "address" and value == 5:
        assert parse(raw)
        return
    with pytest.raises(RankmemError, match="no memory snapshot") as raised:
        parse(raw, source="x.pickle")
    assert raised.value.code is Code.INVALID


def test_a_file_that_is_no_pickle_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    path.write_text("hello")
    with pytest.raises(RankmemError, match=r"memory\.pickle"):
        read(path)
