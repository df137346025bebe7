"""Trainings under other settings of the allocator, recorded and replayed: every address and every byte.

The recordings are memory snapshots of PyTorch 2.11 for CUDA 13, without stacks and times. Its allocator was
the real one; a stand-in, no GPU, handed out the device's memory (``tests/gpu/stand_in.py``). They are what
the checks ``source/NAME`` of ``tests/gpu`` keep.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankmem import replay
from rankmem_imports.files.plain_pickle import load_plain

FOLDER = Path(__file__).with_name("recordings")
MIB = 1 << 20


def recorded(name: str) -> replay.Trace:
    return replay.trace_of_snapshot(load_plain(FOLDER / f"allocator_{name}.pickle.gz"))


@pytest.mark.parametrize(
    ("name", "settings", "allowed_mib", "allocations"),
    [
        ("expandable", "expandable_segments:True", None, 2000),
        ("max_split", "max_split_size_mb:128", None, 2000),
        ("roundup", "roundup_power2_divisions:8", None, 2000),
        ("collected", "garbage_collection_threshold:0.8", 5000, 2000),
        ("retry", "", None, 1991),  # of 2,000; nine failed, after 22 retries
        ("streams", "", None, 5070),
    ],
)
def test_a_training_under_other_settings_is_reproduced_to_the_address_and_the_byte(
    name: str, settings: str, allowed_mib: int | None, allocations: int
) -> None:
    trace = recorded(name)
    assert trace.settings.text() == settings
    if allowed_mib is not None:  # set_per_process_memory_fraction is in no snapshot
        trace.settings = replace(trace.settings, allowed_bytes=allowed_mib * MIB)
    found = replay.check(trace)
    assert found.is_exact
    assert found.num_allocations == found.num_same_address == found.num_same_decision == allocations
    assert found.reserved_difference_bytes == 0
    assert found.replayed_peak_bytes == found.recorded_peak_bytes


@pytest.mark.parametrize("name", ["expandable", "max_split", "roundup", "collected"])
def test_another_setting_would_not_have_given_the_same(name: str) -> None:
    trace = recorded(name)
    trace.settings = replay.Settings()
    assert not replay.check(trace).is_exact
