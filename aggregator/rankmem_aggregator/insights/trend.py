"""Does a series of bytes, one value after each step, grow without end? Pure functions on numpy arrays.

Stage: query. In: the bytes that a group of blocks held after each step. Out: a verdict with its rate. The
test is Mann and Kendall's, which asks for an order and no shape; what tells a leak from a cache that fills
are the new highest values, which must go on, and a rate that must not fall.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

WARM_UP_PARTS: Final = 5
WARM_UP_LEAST: Final = 2
"""Steps left out at the beginning, when states and caches are made: one in five, two at least."""
STEPS_LEAST: Final = 8
"""Steps that must be left: the rule below needs three new highest values and thirds of two steps."""
POINTS_MAX: Final = 240
"""More are pooled by the medians of neighbours: 28,680 slopes between pairs."""
Z_LEAST: Final = 2.6
"""Of Mann and Kendall's statistic: 1 in 200 series of noise exceeds it."""
FALL_MOST: Final = 0.5
"""Less than this part of what rose may fall again."""
RECORDS_LEAST: Final = 3
RECORD_INTERVALS_MOST: Final = 3
"""New highest values, and how many of the usual distances between them the last may lie back."""
HALF_RATE_LEAST: Final = 0.6
"""The second half grows at least so fast, by the first's rate: a cache that fills slows down."""
THIRD_RATE_LEAST: Final = 0.25
"""The last third grows at least so fast, by the mean rate."""
EVEN_MOST: Final = 1.5
"""Of the usual distance between new highest values the longest one at most, where growth comes evenly."""
CHANCE_MOST: Final = 0.001
"""How probable it may be that growth falls on given steps by chance."""
INTERVAL: Final = (5, 95)
"""Percentiles of the slopes between all pairs of steps."""

Growth = Literal["leak", "cache", "input", "model", "stopped", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """What a series does; rates in bytes a step."""

    growth: Growth
    """leak: it grows, and nothing shows that it will end. cache: it grows, but in certain steps alone
    (:func:`grows_only_in`). input, model: it grows, but :mod:`leak_bounds` says why it ends.
    stopped: it grew and no longer does so."""
    rate: float = 0.0
    """The mean since it began, over whole rounds where it comes in each so many steps; of the last third of
    these steps where that differs from the rest."""
    low: float = 0.0
    high: float = 0.0
    """Percentiles of the slopes that the rate is taken from, see :data:`INTERVAL`; widened to hold the rate
    where growth comes in rare steps."""
    grown_bytes: int = 0
    """From the first step looked at to the last."""
    first: int = 0
    last: int = 0
    """Places of the first and the last new highest value in the series; of growth that began within the
    warm-up where it began."""
    interval: int = 0
    """The usual distance between new highest values, in steps; 0 for a single one."""
    may_go_on: bool = False
    """Of growth that stopped, if it did: it came at even distances and did not get less, and the series ends
    before more was due."""
    slows: bool = False
    """Of growth that stopped, if it did: it came to the end, less than before."""
    late_steps: int = 0
    """Of growth that began well after the first step looked at: how many steps there are since; else 0."""

    @property
    def may_grow(self) -> bool:
        """Whether it is not known to have ended."""
        return self.growth == "leak" or self.may_go_on or self.slows


NONE: Final = Trend(growth="none")


def warm_up(num_steps: int) -> int:
    """How many steps at the beginning do not count."""
    return max(WARM_UP_LEAST, num_steps // WARM_UP_PARTS)


def is_long_enough(num_steps: int) -> bool:
    """Whether so many steps can be judged."""
    return num_steps - warm_up(num_steps) >= STEPS_LEAST


def trend_of(series: NDArray[np.int64]) -> Trend:
    """Whether a series leaks, grew and stopped, or does neither.

    Args:
        series: bytes after each step, the warm-up included; long enough (:func:`is_long_enough`).
    """
    start = warm_up(len(series))
    seen = series[start:]
    if seen[-1] <= seen[0]:
        return NONE
    points, size = pooled(seen)
    if mann_kendall(points) <= Z_LEAST or _fall(points) >= FALL_MOST:
        return NONE
    records = np.nonzero(points[1:] > np.maximum.accumulate(points)[:-1])[0] + 1
    usual = float(np.median(np.diff(records))) if len(records) > 1 else 0.0
    began = max(0, int(records[0]) - max(1, round(usual)))
    is_late = bool(records[0] > RECORD_INTERVALS_MOST * max(1.0, usual))
    is_last_third = _last_rate(points, size) >= THIRD_RATE_LEAST * _mean_rate(points, size)
    comes = len(records) >= RECORDS_LEAST and is_last_third and _comes_to_the_end(points, records, usual)
    is_steady = comes and _is_steady(points)
    is_rare = not is_steady and _may_go_on(points, records, usual)
    stride = _stride(records, size)
    # Of growth in each so many steps whole rounds, if none is overdue: where the series cuts one is chance.
    in_rounds = stride > 1 and len(points) - 1 - records[-1] < stride
    rate, low, high = _rate(points[records[0] : records[-1] + 1] if in_rounds else points[began:], size)
    return Trend(
        growth="leak" if is_steady else "stopped",
        rate=rate,
        low=min(low, rate),
        high=max(high, rate),
        grown_bytes=int(seen[-1] - seen[0]),
        first=start + int(records[0]) * size
        if records[0] > stride
        else _begin(series, start + int(records[0]) if stride > 1 else start + 1, stride),
        last=start + min(int(records[-1]) * size, len(seen) - 1),
        interval=round(usual * size),
        may_go_on=is_rare,
        slows=comes and not is_steady and not is_rare,
        late_steps=(len(points) - 1 - began) * size if is_late else 0,
    )


def grown_in(series: NDArray[np.int64]) -> list[int]:
    """The places of the steps after the warm-up in which a series grows.

    Args:
        series: bytes after each step, the warm-up included.
    """
    start = warm_up(len(series))
    found: list[int] = (np.nonzero(np.diff(series[start:]) > 0)[0] + start + 1).tolist()
    return found


def grows_only_in(series: NDArray[np.int64], places: Collection[int]) -> bool:
    """Whether a series grows in none but certain steps, and too often for chance to have chosen them.

    Were growth independent of these steps, all of it would fall on them as rarely as draws without
    replacement do (Fisher's exact test, its most extreme table).

    Args:
        series: bytes after each step, the warm-up included.
        places: of the steps.
    """
    start, grown = warm_up(len(series)), set(grown_in(series))
    own = {place for place in places if start < place < len(series)}
    if not grown or not grown <= own:
        return False
    chance, num_steps = 1.0, len(series) - 1 - start
    for drawn in range(len(grown)):
        chance *= (len(own) - drawn) / (num_steps - drawn)
        if chance <= CHANCE_MOST:
            return True
    return False


def comes_evenly(places: Sequence[int]) -> bool:
    """Whether something comes at even distances of two steps or more, as what is done once an epoch does.

    Args:
        places: of the steps in which it came, in their order.
    """
    distances = np.diff(places)
    if len(distances) < 1 or distances.min() < 2:
        return False
    return bool(distances.max() <= EVEN_MOST * float(np.median(distances)))


def _stride(records: NDArray[np.intp], size: int) -> int:
    """In how many steps it grows once, where that is always the same; else 1."""
    distances = set(np.diff(records).tolist())
    return distances.pop() if size == 1 and len(distances) == 1 else 1


def _begin(series: NDArray[np.int64], place: int, stride: int) -> int:
    """Where the growth began that goes on at a place, each so many steps: in the warm-up, too."""
    while place > stride and series[place - stride - 1] < series[place - stride]:
        place -= stride
    return place


def _mean_rate(points: NDArray[np.float64], size: int) -> float:
    return float(points[-1] - points[0]) / ((len(points) - 1) * size)


def _last_rate(points: NDArray[np.float64], size: int) -> float:
    """Of the last third, of a step at least."""
    return _mean_rate(points[-max(1, len(points) // 3) - 1 :], size)


def _rate(points: NDArray[np.float64], size: int) -> tuple[float, float, float]:
    """The mean rate and its interval; those of the last third where the mean is not within its interval.

    A last third that hardly grows lies between two new highest values: that is no rate.
    """
    mean, (low, high) = _mean_rate(points, size), _interval(points, size)
    last = points[-max(1, len(points) // 3) - 1 :]
    last_rate, (low_last, high_last) = _mean_rate(last, size), _interval(last, size)
    is_mean = low_last <= mean <= high_last or last_rate < THIRD_RATE_LEAST * mean
    return (mean, low, high) if is_mean else (last_rate, low_last, high_last)


def _comes_to_the_end(points: NDArray[np.float64], records: NDArray[np.intp], usual: float) -> bool:
    """Whether new highest values still come, as often as before."""
    return int(len(points) - 1 - records[-1]) <= RECORD_INTERVALS_MOST * usual - 1


def _is_steady(points: NDArray[np.float64]) -> bool:
    """Whether growth has not slowed down."""
    half = len(points) // 2
    first_half = (points[half] - points[0]) / max(half, 1)
    return bool((points[-1] - points[half]) / (len(points) - 1 - half) >= HALF_RATE_LEAST * first_half)


def _may_go_on(points: NDArray[np.float64], records: NDArray[np.intp], usual: float) -> bool:
    """Rare growth, at even distances, as much each time, whose next turn would lie beyond the end."""
    if not comes_evenly(records.tolist()):
        return False
    rises = points[records] - points[records - 1]
    return bool(rises[-1] >= HALF_RATE_LEAST * rises[0] and len(points) - 1 - records[-1] < usual)


def _fall(points: NDArray[np.float64]) -> float:
    """The part of what rose that fell again."""
    changes = np.diff(points)
    return float(-changes[changes < 0].sum() / max(1.0, changes[changes > 0].sum()))


def pooled(values: NDArray[np.int64]) -> tuple[NDArray[np.float64], int]:
    """At most :data:`POINTS_MAX` values, each the median of as many neighbours, and how many those are."""
    size = -(-len(values) // POINTS_MAX)
    whole = len(values) // size * size
    return np.median(values[:whole].reshape(-1, size), axis=1), size


def mann_kendall(values: NDArray[np.float64]) -> float:
    """The statistic of Mann and Kendall with its correction for ties: above 0 where values tend to grow."""
    n = len(values)
    score = float(np.triu(np.sign(values[None, :] - values[:, None]), 1).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    return 0.0 if variance <= 0 else float((score - np.sign(score)) / math.sqrt(variance))


def _interval(points: NDArray[np.float64], size: int) -> tuple[float, float]:
    """The ends of the interval of the slopes between all pairs, in bytes a step."""
    first, second = np.triu_indices(len(points), 1)
    slopes = (points[second] - points[first]) / ((second - first) * size)
    low, high = np.percentile(slopes, INTERVAL)
    return float(low), float(high)
