"""Allocated and active bytes without a compiler: the allocator's own after every event, or unknown.

The oracle is the fake allocator, which knows its bytes after each event; the program looks at none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_history import FakeHistory
from rankmem_agent.spool import layout
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_agent.tap.snapshot_drain import SnapshotDrain
from repetitions import examples
from spool_log import rows_of_spool

MIB = 1 << 20
SEGMENT = 0x10_0000_0000
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def history() -> FakeHistory:
    return FakeHistory()


@pytest.fixture
def drain(history: FakeHistory, tmp_path: Path) -> SnapshotDrain:
    return drain_of(history, tmp_path / "spool")


def drain_of(history: FakeHistory, folder: Path) -> SnapshotDrain:
    return SnapshotDrain(history, PythonSpoolWriter(folder, 8 * layout.SEGMENT_BYTES), lambda _: None)


def told(rows: Rows) -> list[tuple[int | None, int | None]]:
    return [(row["allocated_bytes"], row["active_bytes"]) for row in rows["memory_event"]]


def peaks(rows: Rows) -> tuple[int, int]:
    """As the view peak_by_rank has them."""
    buckets = rows["memory_bucket"]
    return (
        max(bucket["allocated_peak_bytes"] or 0 for bucket in buckets),
        max(bucket["active_peak_bytes"] or 0 for bucket in buckets),
    )


def unknown_parts(rows: Rows) -> list[str]:
    return [row["what"] for row in rows["gap"] if "allocated" in (row["what"] or "")]


@examples(0.6)
@given(
    steps=st.lists(st.sampled_from(["alloc", "alloc", "free", "request", "drain"]), max_size=60),
    at_once=st.integers(1, 40),
)
def test_every_event_has_the_allocators_bytes_whenever_the_history_is_drained(
    steps: list[str], at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    history, folder = FakeHistory(), tmp_path_factory.mktemp("drain") / "spool"
    drain = drain_of(history, folder)
    drain.attach()
    for number, step in enumerate(steps):
        in_use = [a for a, block in history.live[0].items() if block["state"] == "active_allocated"]
        if step == "alloc":
            history.alloc(0x1000 * (number + 1), 1 + 700 * (number % 5))
        elif step == "free" and in_use:
            history.free(in_use[0])
        elif step == "request" and in_use:
            history.free_requested(in_use[-1])
        else:
            drain.drain()
    drain.close()
    rows = rows_of_spool(folder, at_once)
    assert told(rows) == history.held[0]
    if history.held[0]:
        assert peaks(rows) == tuple(map(max, zip(*history.held[0], strict=True)))
    assert not unknown_parts(rows)


@examples(0.4)
@given(steps=st.lists(st.sampled_from(["alloc", "free", "drain", "made", "freed", "reset"]), max_size=40))
def test_what_other_threads_do_during_a_look_makes_bytes_unknown_and_never_wrong(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    history, folder = FakeHistory(), tmp_path_factory.mktemp("drain") / "spool"
    drain = drain_of(history, folder)
    drain.attach()
    for number, step in enumerate(steps):
        address = 0x1000 * (number + 1)
        oldest = next(iter(history.live[0]), None)
        if step == "made":
            history.between = lambda address=address: history.alloc(address, 700)
        elif step == "freed" and oldest is not None:
            history.between = lambda oldest=oldest: history.free(oldest)
        elif step == "alloc":
            history.alloc(address, 3000)
        elif step == "reset":
            history.reset_peaks()
        elif step == "free" and oldest is not None:
            history.free(oldest)
        if step in ("drain", "made", "freed"):
            drain.drain()
    for _ in range(2):
        drain.drain()
    history.alloc(0x9000_0000, 100)
    drain.close()
    rows = rows_of_spool(folder)
    for seen, held in zip(told(rows), history.held[0], strict=True):
        assert seen in (held, (None, None))
    assert told(rows)[-1] == history.held[0][-1]
    top = tuple(map(max, zip(*history.held[0], strict=True)))
    if "reset" in steps:
        assert all(known <= true for known, true in zip(peaks(rows), top, strict=True))
    else:
        assert peaks(rows) == top


def test_the_highest_bytes_between_two_drains_are_the_peak(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    drain.attach()
    history.alloc(0x1000, 100)
    history.alloc(0x2000, 5000)
    history.free(0x2000)
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    assert peaks(rows) == (512 + 5120, 512 + 5120)
    assert told(rows) == history.held[0]


def test_peaks_that_the_program_resets_leave_nothing_unknown(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    drain.attach()
    for number in range(6):
        history.alloc(0x1000, 5000 - 100 * number)
        history.free(0x1000)
        history.reset_peaks()
        if number % 2:
            drain.drain()
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    assert told(rows) == history.held[0]
    assert peaks(rows) == (5120, 5120)


def test_a_block_that_keeps_the_rest_of_its_range_counts_whole(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    drain.attach()
    history.segment_alloc(SEGMENT, 20 * MIB)
    history.alloc(SEGMENT, 4 * MIB)
    history.alloc(SEGMENT + 8 * MIB, 11 * MIB + 100, block_bytes=12 * MIB)  # less than 1 MiB is left
    history.free(SEGMENT + 8 * MIB)
    history.alloc(SEGMENT + 4 * MIB, 3 * MIB)
    history.alloc(SEGMENT + 7 * MIB, 2 * MIB)
    drain.drain()
    history.free(SEGMENT + 4 * MIB)
    history.alloc(SEGMENT + 4 * MIB, 5 * MIB // 2, block_bytes=3 * MIB)  # up to the next block
    history.free_requested(SEGMENT)
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    assert told(rows) == history.held[0]
    assert peaks(rows) == (16 * MIB, 16 * MIB)


def test_sizes_by_another_rule_are_unknown_and_said_until_they_are_listed(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    drain.attach()
    history.alloc(0x1000, 100)
    drain.drain()
    history.alloc(0x2000, 100, block_bytes=4096)
    drain.drain()
    history.alloc(0x3000, 100)
    history.free(0x2000)
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    held = history.held[0]
    assert told(rows) == [held[0], (None, None), (4096 + 1024, 4096 + 1024), (1024, 5120), (1024, 1024)]
    assert unknown_parts(rows) == ["some allocated and active bytes of cuda:0"]
    assert peaks(rows) == (5120, 5120)


def test_a_block_by_another_rule_that_no_look_lists_is_noticed_by_the_allocators_peak(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    drain.attach()
    history.alloc(0x1000, 100)
    drain.drain()
    history.alloc(0x2000, 100, block_bytes=4096)
    history.free(0x2000)
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    assert told(rows)[1:] == [(None, None)] * 3
    assert unknown_parts(rows)
    assert peaks(rows) == (4608, 4608), "the allocator tells it"


def test_blocks_older_than_a_history_that_the_program_records_are_known_from_the_first_look_on(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    history.alloc(0x1000, 100)
    history.alloc(0x2000, 5000, block_bytes=8192)
    history.recording = True
    history.alloc(0x3000, 100)
    drain.attach()
    history.free(0x2000)
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    assert told(rows) == [(None, None), (1024, 9216), (1024, 1024)]
    assert unknown_parts(rows)


def test_the_peak_of_a_program_whose_first_events_were_lost_is_the_one_the_allocator_tells(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    history.ring_entries = 20
    drain.attach()
    history.segment_alloc(SEGMENT, 20 * MIB)
    history.alloc(SEGMENT, 8 * MIB)
    history.free(SEGMENT)
    for _ in range(20):
        history.alloc(SEGMENT, 2 * MIB)
        history.free(SEGMENT)
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    assert set(told(rows)) == {(None, None)}
    assert peaks(rows) == (8 * MIB, 8 * MIB)
    assert sorted(row["why"] for row in rows["gap"]) == ["hooks_off", "ring_overwritten"]


def test_after_events_were_lost_the_bytes_are_known_again_at_the_next_look(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    history.ring_entries = 20
    drain.attach()
    history.alloc(0x1000, 100)
    drain.drain()
    for number in range(30):
        history.alloc(0x2000 + 0x1000 * number, 20)
    drain.drain()
    history.free(0x1000)
    drain.close()
    rows = rows_of_spool(tmp_path / "spool")
    assert told(rows) == [(512, 512), *[(None, None)] * 20, *history.held[0][-2:]]
    assert not unknown_parts(rows), "that events are missing is said already"
    assert peaks(rows) == (31 * 512, 31 * 512)
