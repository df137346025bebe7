"""Which series are leaks: constructed ones, and how often noise and caches are taken for one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rankmem_aggregator.insights.trend import (
    Growth,
    grows_only_in,
    is_long_enough,
    mann_kendall,
    pooled,
    trend_of,
    warm_up,
)

MIB = 1 << 20
Series = NDArray[np.int64]


def ramp(steps: int, every: int = 1, size: int = MIB, since: int = 0) -> Series:
    return np.array([max(0, k - since) // every * size for k in range(steps)]) + 7 * MIB


CREEPS: Series = np.cumsum([MIB] * 18 + [3 * MIB] * 4 + [MIB // 20] * 8)
"""The last third grows at a twentieth of the rate, and in each step."""
CASES: dict[str, tuple[Series, Growth]] = {
    "each step": (ramp(30), "leak"),
    "each fifth step": (ramp(30, every=5), "leak"),
    "late": (ramp(30, since=12), "leak"),
    "long": (ramp(1000), "leak"),
    "rare and long": (ramp(1000, every=50), "leak"),
    "never": (ramp(30, size=0), "none"),
    "falls": (ramp(30)[::-1].copy(), "none"),
    "in the warm-up alone": (np.minimum(ramp(30), ramp(30)[5]), "none"),
    "a ring that is full": (np.minimum(ramp(30), ramp(30)[15]), "stopped"),
    "up and down": (np.arange(30) % 5 * MIB, "none"),
    "a cache that slows down": ((100 * MIB * (1 - np.exp(-np.arange(60) / 10))).astype(np.int64), "stopped"),
    "a ring that is full just now": (np.minimum(ramp(30), ramp(30)[25]), "stopped"),
    "a jump at the end": (np.where(np.arange(30) < 29, MIB, 9 * MIB), "none"),
    "mostly falls back": (np.array([k // 2 + k % 2 * 3 for k in range(30)]).astype(np.int64) * MIB, "none"),
    "creeps after a rise": (CREEPS, "stopped"),
    "one jump": (np.where(np.arange(30) < 18, MIB, 9 * MIB), "stopped"),
}


@pytest.mark.parametrize(
    ("series", "may_go_on", "interval"),
    [
        (ramp(64, every=16, size=9 * MIB), True, 16),
        (ramp(46, every=12, size=9 * MIB), True, 12),
        (np.minimum(ramp(90, every=16, size=9 * MIB), 7 * MIB + 27 * MIB), False, 16),
        (np.minimum(ramp(30), ramp(30)[25]), False, 1),
        ((100 * MIB * (1 - np.exp(-np.arange(60) / 10))).astype(np.int64), False, 1),
        # A cache that fills: each time later, or less.
        (np.cumsum([0] * 14 + [9 * MIB] + [0] * 7 + [9 * MIB] + [0] * 27 + [9 * MIB] + [0] * 13), False, 18),
        (np.cumsum([0] * 16 + [9 * MIB] + [0] * 15 + [9 * MIB] + [0] * 15 + [MIB] + [0] * 15), False, 16),
        (np.where(np.arange(30) < 18, MIB, 9 * MIB), False, 0),
    ],
)
def test_growth_at_even_distances_may_go_on_where_the_next_turn_is_beyond_the_end(
    series: Series, may_go_on: bool, interval: int
) -> None:
    trend = trend_of(series)
    assert (trend.growth, trend.may_go_on, trend.interval) == ("stopped", may_go_on, interval)


@pytest.mark.parametrize("name", CASES)
def test_a_series_is_a_leak_where_it_goes_on(name: str) -> None:
    series, growth = CASES[name]
    assert trend_of(series).growth == growth


def test_the_rate_is_the_slope_and_the_interval_holds_it() -> None:
    trend = trend_of(ramp(40, size=3 * MIB))
    assert (trend.rate, trend.low, trend.high) == (3 * MIB, 3 * MIB, 3 * MIB)
    assert trend.grown_bytes == (40 - 1 - warm_up(40)) * 3 * MIB
    assert (trend.first, trend.last) == (1, 39)


def test_the_rate_of_a_late_leak_is_that_of_its_last_third() -> None:
    trend = trend_of(ramp(30, since=12))
    assert trend.rate == trend.low == trend.high == MIB
    assert trend.first == 13


@pytest.mark.parametrize(("steps", "since"), [(64, 50), (70, 66), (240, 230)])
def test_growth_that_begins_near_the_end_has_the_rate_since_then(steps: int, since: int) -> None:
    trend = trend_of(ramp(steps, since=since))
    assert (trend.growth, trend.rate, trend.low, trend.high) == ("leak", MIB, MIB, MIB)
    assert (trend.first, trend.late_steps) == (since + 1, steps - 1 - since)
    assert trend_of(ramp(steps)).late_steps == 0


@pytest.mark.parametrize(("steps", "every"), [(72, 6), (72, 8), (75, 10), (77, 10), (64, 2)])
def test_the_rate_of_growth_in_each_so_many_steps_is_to_the_byte(steps: int, every: int) -> None:
    """Wherever the series begins and ends within a round."""
    assert trend_of(ramp(steps, every=every, size=every * MIB)).rate == MIB


def test_a_late_leak_that_pauses_at_the_end_keeps_its_rate() -> None:
    """As what is kept of errors: of the few steps since the first one the last third may have none."""
    series = np.cumsum([MIB if step in (50, 52, 54, 56, 58) else 0 for step in range(64)])
    trend = trend_of(series)
    assert (trend.growth, trend.rate) == ("leak", pytest.approx(5 * MIB / 15))


def test_growth_that_comes_to_the_end_but_less_than_before_slows_down() -> None:
    slows = trend_of(np.cumsum([MIB] * 40 + [MIB // 2] * 30))
    assert (slows.growth, slows.slows, slows.may_go_on) == ("stopped", True, False)
    for series, growth in CASES.values():
        assert not (growth == "stopped" and trend_of(series).slows)


def test_the_distance_of_growth_in_pooled_steps_is_in_steps() -> None:
    """Pooled by four, each other new highest value is one place after the last, each other two."""
    points = np.cumsum([MIB if step % 3 else 0 for step in range(200)])
    series = np.concatenate([np.zeros(200, np.int64), np.repeat(points, 4)])
    assert (pooled(series[200:])[1], trend_of(series).growth, trend_of(series).interval) == (4, "leak", 6)


def test_pooled_steps_keep_the_rate_a_step() -> None:
    trend = trend_of(ramp(3000))
    assert trend.rate == pytest.approx(MIB, rel=1e-6)
    points, size = pooled(ramp(3000)[warm_up(3000) :])
    assert len(points) == 240
    assert size == 10


def test_ten_steps_are_the_least() -> None:
    assert next(steps for steps in range(30) if is_long_enough(steps)) == 10
    assert trend_of(ramp(10)).growth == "leak"


def test_mann_kendall_is_the_textbook_statistic() -> None:
    # Gilbert 1987, p. 209 form: S and its variance with one tie of three, by hand.
    values = np.array([1.0, 2, 2, 2, 5, 4])
    score = sum(np.sign(values[later] - values[first]) for first in range(6) for later in range(first + 1, 6))
    variance = (6 * 5 * 17 - 3 * 2 * 11) / 18
    assert mann_kendall(values) == pytest.approx((score - 1) / math.sqrt(variance))
    assert mann_kendall(np.ones(9)) == 0.0


def noise(rng: np.random.Generator, steps: int) -> Series:
    return (1e8 + 1e6 * rng.normal(size=steps)).astype(np.int64)


def cache(rng: np.random.Generator, steps: int) -> Series:
    """A cache of twelve entries that fills as keys come at random."""
    keys = rng.integers(0, 12, steps)
    return np.array([len(set(keys[: k + 1].tolist())) for k in range(steps)]) * MIB


@pytest.mark.parametrize(
    ("made", "steps", "most"), [(noise, 30, 0.0), (noise, 60, 0.0), (noise, 200, 0.0), (cache, 60, 0.05)]
)
def test_noise_is_no_leak_and_a_random_cache_rarely_is(
    made: Callable[[np.random.Generator, int], Series], steps: int, most: float
) -> None:
    rng = np.random.default_rng(20)
    found = sum(trend_of(made(rng, steps)).growth == "leak" for _ in range(300))
    assert found <= most * 300


def at_random_lengths(rng: np.random.Generator, steps: int, num_lengths: int) -> tuple[Series, list[int]]:
    """A cache by length, and the steps in which a length came that none before had."""
    lengths = rng.integers(num_lengths, 2 * num_lengths, steps)
    first = np.unique(lengths, return_index=True)[1]
    return np.cumsum(np.where(np.isin(np.arange(steps), first), lengths * 4000, 0)), first.tolist()


def test_a_cache_by_length_is_told_from_a_leak_where_lengths_come_again() -> None:
    rng = np.random.default_rng(20)
    caches = [at_random_lengths(rng, 60, 64) for _ in range(100)]
    assert sum(trend_of(series).growth == "leak" for series, _ in caches) > 30
    assert all(grows_only_in(series, first) for series, first in caches)


def test_a_leak_is_no_cache_by_length() -> None:
    rng = np.random.default_rng(20)
    for _ in range(100):
        _, first = at_random_lengths(rng, 60, 64)
        assert not grows_only_in(ramp(60), first)
        assert not grows_only_in(np.cumsum((rng.random(60) < 0.2) * MIB), first)
    assert not grows_only_in(ramp(60), range(60)), "where each length is new, nothing tells them apart"
    assert not grows_only_in(ramp(60, size=0), range(20))


@pytest.mark.parametrize("every", [40, 80, 97])
def test_the_interval_holds_the_rate_of_growth_in_rare_steps(every: int) -> None:
    trend = trend_of(np.array([100 * MIB * (step // every) for step in range(300)]))
    assert trend.low <= trend.rate <= trend.high


def test_growth_from_the_warm_up_on_has_its_own_first_step() -> None:
    series = np.array([5 * MIB] * 3 + [(step + 6) * MIB for step in range(37)])
    assert trend_of(series).first == 3


@pytest.mark.parametrize("stride", [1, 3, 5])
def test_growth_of_every_few_steps_began_in_the_warm_up(stride: int) -> None:
    series = 1000 * (1 + np.arange(70) // stride)
    found = trend_of(series)
    assert (found.growth, found.first) == ("leak", stride)
    assert trend_of(np.where(np.arange(70) < 20, 0, series)).first == 20
