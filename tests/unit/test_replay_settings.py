"""What an H200 recorded, replayed: every address and every byte, under each setting of the allocator.

The recordings are memory snapshots, without stacks and times (``recordings/README.md``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankmem import replay
from rankmem_imports.files.plain_pickle import load_plain

FOLDER = Path(__file__).with_name("recordings")
MIB = 1 << 20


def snapshot(name: str) -> Any:
    return load_plain(FOLDER / f"allocator_{name}.pickle.gz")


def recorded(name: str) -> replay.Trace:
    return replay.trace_of_snapshot(snapshot(name))


@pytest.mark.parametrize(
    ("name", "settings", "allowed_mib", "allocations"),
    [
        ("default", "", None, 2000),
        ("expandable", "expandable_segments:True", None, 2000),
        ("max_split", "max_split_size_mb:128", None, 2000),
        ("roundup", "roundup_power2_divisions:8", None, 2000),
        ("collected", "garbage_collection_threshold:0.8", 5000, 2000),
        ("retry", "", 3700, 1990),  # of 2,000; ten failed, after 21 retries
        ("streams", "", None, 5070),
        ("graph", "", None, 627),
        ("gpt", "", None, 3583),
    ],
)
def test_what_a_device_recorded_is_reproduced_to_the_address_and_the_byte(
    name: str, settings: str, allowed_mib: int | None, allocations: int
) -> None:
    trace = recorded(name)
    assert trace.settings.text() == settings
    if allowed_mib is not None:  # set_per_process_memory_fraction is in no snapshot
        trace.settings = replace(trace.settings, allowed_bytes=allowed_mib * MIB)
    found = replay.check(trace)
    assert (found.is_exact, found.reasons) == (True, ())
    assert found.num_allocations == found.num_same_address == found.num_same_decision == allocations
    assert found.reserved_difference_bytes == 0
    assert found.replayed_peak_bytes == found.recorded_peak_bytes


@pytest.mark.parametrize("name", ["expandable", "max_split", "roundup", "collected"])
def test_another_setting_would_not_have_given_the_same(name: str) -> None:
    trace = recorded(name)
    trace.settings = replay.Settings()
    assert not replay.check(trace).is_exact


def test_a_private_pool_is_that_of_the_segments_at_the_end() -> None:
    raw = snapshot("graph")
    assert not any("pool_id" in entry or "segment_pool_id" in entry for entry in raw["device_traces"][0])
    trace = replay.trace_of_snapshot(raw)
    assert {private for private, _ in trace.groups} == {None, "1.0"}
    assert trace.num_unknown_pools == 0


def test_a_replay_that_is_not_exact_says_that_pools_are_not_told() -> None:
    raw = snapshot("graph")
    for segment in raw["segments"]:
        del segment["segment_pool_id"]
    found = replay.check(replay.trace_of_snapshot(raw))
    assert not found.is_exact
    assert [reason for reason in found.reasons if "private pool" in reason and "5 segments" in reason]
