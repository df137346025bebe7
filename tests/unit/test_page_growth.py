"""Slopes with their intervals beside a slow, obvious oracle; and what follows from them for a device."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import numpy as np
import pytest

from rankmem_aggregator.page.fitting import Held, fit_of, growth_of_peaks, margin_of, usable_of
from rankmem_aggregator.page.growth import Growth, growth_of, pooled, theil_sen, warm_up_end

GIB = 1 << 30
MIB = 1 << 20


def oracle(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """As Sen has it: all slopes in order, and places in them from the variance of Kendall's score."""
    slopes = sorted((y[j] - y[i]) / (x[j] - x[i]) for i in range(len(x)) for j in range(i + 1, len(x)))
    n, pairs = len(x), len(slopes)
    spread = 1.959964 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(round((pairs - spread) / 2) - 1, 0)
    high = min(round((pairs + spread) / 2), pairs - 1)
    return median(slopes), slopes[low], slopes[high]


@pytest.mark.parametrize("seed", range(5))
def test_a_slope_and_its_interval_are_the_oracles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.choice(200, 30, replace=False)).astype(float)
    y = rng.normal(0, 100, 30) + 7 * x
    assert theil_sen(x, y) == pytest.approx(oracle(x.tolist(), y.tolist()))


def test_the_interval_of_published_data_is_the_published_one() -> None:
    # The example of Sen (1968): slope 4, from 26/7 to 35/8.
    x, y = np.array([1.0, 2, 3, 4, 10, 12, 18]), np.array([9.0, 15, 19, 20, 45, 55, 78])
    slope, low, high = theil_sen(x, y)
    assert slope == 4.0
    assert (low, high) == (pytest.approx(26 / 7), 35 / 8)


def test_nineteen_in_twenty_intervals_hold_the_true_slope() -> None:
    rng = np.random.default_rng(1)
    x = np.arange(40.0)
    held = 0
    for _ in range(400):
        _, low, high = theil_sen(x, 3 * x + rng.standard_t(2, 40) * 50)
        held += low <= 3 <= high
    assert 0.92 <= held / 400 <= 0.98


def test_steady_growth_is_exact_and_odd_steps_do_not_move_it() -> None:
    steps = np.arange(30)
    peaks = 5 * GIB + 96 * MIB * steps
    peaks[[9, 20]] += 7 * GIB  # evaluation
    growth = growth_of(steps, peaks)
    assert growth is not None
    assert growth.slope == 96 * MIB
    assert growth.low == 96 * MIB
    assert growth.is_sure
    assert growth.level == 12 * GIB + 96 * MIB * 29, "the line through the highest point, at the last step"


def test_noise_does_not_surely_grow() -> None:
    growth = growth_of(np.arange(50), np.random.default_rng(3).integers(0, GIB, 50))
    assert growth is not None
    assert growth.low < 0 < growth.high
    assert not growth.is_sure


@pytest.mark.parametrize(("num_steps", "known"), [(9, False), (10, True)])
def test_a_slope_needs_eight_steps_after_the_warm_up(num_steps: int, known: bool) -> None:
    growth = growth_of(np.arange(num_steps), np.arange(num_steps))
    assert (growth is not None) == known


def test_the_warm_up_does_not_count() -> None:
    assert warm_up_end(np.array([100, 101, 149])) == 110
    steps = np.arange(40)
    values = np.where(steps < 8, 1000 - 100 * steps, 5 * steps)
    growth = growth_of(steps, values)
    assert growth is not None
    assert (growth.slope, growth.low, growth.high) == (5, 5, 5)


def test_many_steps_are_pooled_and_a_steady_slope_stays_exact() -> None:
    steps = np.arange(5003)
    growth = growth_of(steps, 12_345 + 678 * steps)
    assert growth is not None
    assert growth.num_steps <= 120
    assert growth.slope == pytest.approx(678, rel=1e-12)
    assert pooled(np.arange(7), most=3).tolist() == [1, 4, 6]


def held(**known: Any) -> Held:
    given: dict[str, Any] = {
        "peak_bytes": 8 * GIB,
        "reserved_peak_bytes": 10 * GIB,
        "beyond_bytes": GIB,
        "size_bytes": 16 * GIB,
        "step_ns": 2_000_000_000,
        "growth": None,
    }
    return Held(**{**given, **known})


def growing(slope: int, low: float, high: float, level: float) -> Growth:
    return Growth(slope=slope, low=low, high=high, num_steps=20, level=level)


def test_usable_is_the_size_less_what_is_beyond_and_a_margin() -> None:
    assert margin_of(16 * GIB) == 256 * MIB
    assert margin_of(80 * GIB) == math.ceil(0.8 * GIB)
    assert usable_of(16 * GIB, GIB) == 15 * GIB - 256 * MIB
    assert usable_of(None, GIB) is None


def test_room_is_told_at_requested_and_at_reserved() -> None:
    fit = fit_of(held())
    assert fit.left_bytes == 7 * GIB - 256 * MIB
    assert fit.left_reserved_bytes == 5 * GIB - 256 * MIB
    assert (fit.verdict, fit.steps_left) == ("fits", None)
    assert fit_of(held(size_bytes=11 * GIB)).verdict == "tight"
    short = fit_of(held(size_bytes=9 * GIB))
    assert (short.verdict, short.left_bytes) == ("short", -256 * MIB)
    assert fit_of(held(size_bytes=None)).verdict == "unknown"
    cpu = fit_of(held(reserved_peak_bytes=None, beyond_bytes=None))
    assert (cpu.verdict, cpu.left_reserved_bytes) == ("fits", None)


def test_steps_to_full_are_whole_ones_with_the_range_of_the_slope() -> None:
    growth = growing(512 * MIB, 256 * MIB, GIB, level=8.0 * GIB)
    fit = fit_of(held(growth=growth))
    room = 7 * GIB - 256 * MIB  # 13.5 steps of 512 MiB
    assert (fit.steps_left, fit.steps_left_low, fit.steps_left_high) == (13, 6, 27)
    assert fit.steps_left_reserved == (room - 2 * GIB) // (512 * MIB)
    assert (fit.time_left_ns, fit.time_left_low_ns) == (26_000_000_000, 12_000_000_000)
    assert fit_of(held(growth=growth, step_ns=None)).time_left_ns is None


def test_what_does_not_surely_grow_has_no_end() -> None:
    assert fit_of(held(growth=growing(MIB, -1, GIB, 8.0 * GIB))).steps_left is None


def test_what_is_full_has_no_step_left() -> None:
    assert fit_of(held(growth=growing(MIB, 1, GIB, 15.0 * GIB))).steps_left == 0


def test_growth_without_steps_is_not_known() -> None:
    assert growth_of_peaks(None, None) is None
    assert growth_of_peaks([1, 2], [3, 4]) is None
