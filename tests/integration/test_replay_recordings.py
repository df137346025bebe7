"""Recordings that others made on devices, replayed: every address and every byte as PyTorch had them.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from import_read import imported
from rankmem import replay
from rankmem_aggregator import connect
from rankmem_aggregator.insights.packing import intervals, live_peak_bytes, packed_bytes
from rankmem_aggregator.insights.replays import check, needed_bytes, run
from rankmem_imports.files.plain_pickle import load_plain
from rankmem_protos.errors import RankmemError

FOLDER = Path(__file__).resolve().parents[3] / "shared/recordings/torch_snapshot"
GIB = 1 << 30

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/torch_snapshot"),
]


@pytest.mark.parametrize(
    ("name", "allocations", "older"),
    [
        ("complete_small.pickle", 36, 0),
        ("forward_fp32.pickle", 681, 137),
        ("forward_large.pickle", 4138, 1745),
        ("npu_empty_cache.pkl", 2899, 320),
        ("npu_expandable.pkl", 2899, 320),
    ],
)
def test_a_recording_is_reproduced_to_the_address_and_the_byte(
    name: str, allocations: int, older: int, tmp_path: Path
) -> None:
    database = tmp_path / "recorded.duckdb"
    imported(database, FOLDER / name)
    with connect(database) as queries:
        trace = queries.allocator_trace(0)
    found = check(trace)
    assert (found.num_allocations, trace.num_older) == (allocations, older)
    assert found.num_same_address == found.num_same_decision == allocations
    assert found.reserved_difference_bytes == 0
    assert found.replayed_peak_bytes == found.recorded_peak_bytes
    assert trace.settings.expandable_segments == ("expandable" in name)
    lives = intervals(trace, trace.settings)
    packed = packed_bytes(lives)
    assert packed is not None
    assert live_peak_bytes(lives) <= packed <= 1.01 * live_peak_bytes(lives)


def test_what_settings_would_do_is_what_the_prototype_found(tmp_path: Path) -> None:
    """The row "small (sil)" of the table of issue 17: made with another program, on the same recording."""
    database = tmp_path / "recorded.duckdb"
    imported(database, FOLDER / "complete_small.pickle")
    with connect(database) as queries:
        trace = queries.allocator_trace(0)
    found = {}
    for text in ("", "expandable_segments:True", "max_split_size_mb:128", "max_split_size_mb:512",
                 "roundup_power2_divisions:8"):  # fmt: skip
        settings = trace.settings.changed(text)
        outcome = run(trace, settings)
        needed = needed_bytes(trace, settings, outcome)
        found[text] = (round(outcome.reserved_peak_bytes / GIB, 2), round(needed / GIB, 2))
    assert found == {
        "": (3.52, 3.52),
        "expandable_segments:True": (3.54, 3.07),
        "max_split_size_mb:128": (3.04, 3.04),
        "max_split_size_mb:512": (3.04, 3.04),
        "roundup_power2_divisions:8": (3.52, 3.52),
    }


@pytest.mark.parametrize("name", ["complete_small.pickle", "forward_fp32.pickle", "forward_large.pickle"])
def test_a_snapshot_is_replayed_without_a_database(name: str) -> None:
    found = replay.check(replay.trace_of_snapshot(load_plain(FOLDER / name)))
    assert found.is_exact
    assert found.num_same_decision == found.num_allocations > 0


def test_the_replay_by_itself_is_a_model_of_an_allocator() -> None:
    allocator = replay.Allocator(replay.Settings(capacity_bytes=30 << 20))
    first = allocator.malloc("weights", 5 << 20)
    assert allocator.malloc("more", 5 << 20) == first + (5 << 20)
    with pytest.raises(replay.OutOfMemory):
        allocator.malloc("too much", 25 << 20)
    allocator.free("weights")
    assert (allocator.live_bytes, allocator.device.reserved_bytes) == (5 << 20, 20 << 20)


def test_a_snapshot_without_the_device_is_refused() -> None:
    with pytest.raises(RankmemError, match="nothing of device 5"):
        replay.trace_of_snapshot(load_plain(FOLDER / "complete_small.pickle"), device=5)
