"""Curves are thinned without losing a peak; short ones stay as they are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.query import thinning as curves
from repetitions import examples


@examples(1)
@given(
    steps=st.lists(st.integers(-1000, 1000), min_size=1, max_size=400),
    gaps=st.lists(st.integers(0, 10**9), min_size=400, max_size=400),
    points=st.integers(curves.POINTS_MIN, 60),
)
def test_the_highest_of_every_part_stays(steps: list[int], gaps: list[int], points: int) -> None:
    values = np.cumsum(np.array(steps, np.int64))
    times = 1_700_000_000_000_000_000 + np.cumsum(np.array(gaps[: len(steps)], np.int64))
    kept = curves.thinned(times, values, points)
    assert len(kept) <= max(points, 1)
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert values[kept].max() == values.max()
    assert int(np.argmax(values)) in kept
    for part in np.array_split(np.arange(len(values)), max(points // 2 - 1, 1)):
        if len(values) > points and len(part) > 2:
            inner = part[1:-1]
            near = kept[(kept >= part[0] - 1) & (kept <= part[-1] + 1)]
            assert values[near].max() >= values[inner].max()


def test_a_curve_within_the_limit_is_left_alone() -> None:
    values = np.array([5, 1, 9, 9, 2] * 4, np.int64)
    assert curves.thinned(np.arange(20), values, 20).tolist() == list(range(20))


def test_one_high_point_in_a_million_is_kept() -> None:
    values = np.zeros(1_000_000, np.int64)
    values[:] = np.arange(1_000_000) % 1000
    values[654_321] = 1 << 40
    kept = curves.thinned(np.arange(1_000_000), values, 500)
    assert len(kept) <= 500
    assert 654_321 in kept


def test_columns_become_curves_and_unknown_ones_are_left_out() -> None:
    table = pa.table(
        {
            "time_ns": pa.array([1, 2, 3, 4], pa.int64()),
            "requested": pa.array([5, 7, 7, 6], pa.int64()),
            "allocated": pa.array([None, 8, None, 9], pa.int64()),
            "reserved": pa.array([None] * 4, pa.int64()),
        }
    )
    found, exact = curves.of_columns(table, points=10)
    rows = curves.joined(found).to_pylist()
    assert [(row["group"], row["time_ns"], row["bytes"]) for row in rows] == [
        ("requested", 1, 5),
        ("requested", 2, 7),
        ("requested", 4, 6),
        ("allocated", 2, 8),
        ("allocated", 4, 9),
    ]
    assert exact


def test_a_curve_of_big_numbers_keeps_them_to_the_byte() -> None:
    big = (1 << 62) + 1
    table = pa.table({"group_name": ["a", "a", "b"], "time_ns": [1, 2, 1], "bytes": [big, big - 1, 3]})
    found, _ = curves.of_groups(table, points=10)
    assert curves.joined(found)["bytes"].to_pylist() == [big, big - 1, 3]
