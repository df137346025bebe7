"""Curves of memory over time, ready to be drawn: names, instants and bytes on one grid.

Stage: between query and picture, in the reader's process. In: the rows of the named query ``timeline``, one
for each group and instant. Out: a :class:`Chart`: every series has a value at every instant, as a total
holds until the next event. Bytes stay integers. Draws nothing and reads no database.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from rankmem_aggregator.plots.palette import OF_CATEGORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

Ints = npt.NDArray[np.int64]

SERIES_MAX: Final = 9
"""Series of a stacked chart: eight, and one for all others. More colours cannot be told apart."""
CATEGORY_ORDER: Final = tuple(OF_CATEGORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve."""

    name: str
    values_bytes: Ints
    """Bytes from each of the chart's instants to the next."""

    def peak_bytes(self) -> int:
        """Its highest value; 0 where there is none."""
        return int(self.values_bytes.max()) if len(self.values_bytes) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over one time axis."""

    title: str
    subtitle: str = ""
    """What the figures mean; shown under the title."""
    times_ns: Ints
    """Instants on the session's common clock, ascending, the same for all series."""
    start_ns: int
    """The session's start: the zero of the axis."""
    series: tuple[Series, ...]
    """In the order in which they are drawn, from the bottom where stacked."""
    stacked: bool
    """True where the series add up to a whole; False where they measure the same thing in different ways."""

    def total_bytes(self) -> Ints:
        """The top of the picture at each instant: the sum where stacked, else the highest series."""
        if not self.series:
            return np.zeros(len(self.times_ns), np.int64)
        values = np.stack([one.values_bytes for one in self.series])
        top: Ints = values.sum(axis=0) if self.stacked else values.max(axis=0)
        return top

    def top(self) -> Ints:
        """The chart as one curve: the sum where stacked, else the first series."""
        return self.total_bytes() if self.stacked or not self.series else self.series[0].values_bytes


def chart_of(rows: pa.Table, *, start_ns: int, stacked: bool, title: str, subtitle: str = "") -> Chart:
    """The chart of a timeline's rows.

    Args:
        rows: columns time_ns, group, bytes, as the named query ``timeline`` gives them.
        start_ns: the session's start.
        stacked: True for groups that add up to a whole; they are ordered, and the smallest merged into one.
        title: of the chart.
        subtitle: what the figures mean.
    """
    encoded = rows["group"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    times_ns, values = (rows[name].to_numpy().astype(np.int64, copy=False) for name in ("time_ns", "bytes"))
    points = {
        str(name): (times_ns[codes == code], values[codes == code])
        for code, name in enumerate(encoded.dictionary.to_pylist())
    }
    grid, curves = on_one_grid(points)
    series = [Series(name=name, values_bytes=curve) for name, curve in curves.items()]
    return Chart(
        title=title,
        subtitle=subtitle,
        times_ns=grid,
        start_ns=start_ns,
        series=_arranged(series) if stacked else tuple(series),
        stacked=stacked,
    )


def on_one_grid(points: Mapping[str, tuple[Ints, Ints]]) -> tuple[Ints, dict[str, Ints]]:
    """Curves given by points as curves over the same instants; each holds its value until its next point.

    Args:
        points: of each curve its instants, ascending, and its bytes from each on; of several points at one
            instant the last holds.

    Returns:
        The instants, ascending, each once; and for each curve its bytes at each of them: 0 before its first.
    """
    if not points:
        return np.zeros(0, np.int64), {}
    every = np.concatenate([times for times, _ in points.values()])
    whose = np.repeat(np.arange(len(points)), [len(times) for times, _ in points.values()])
    # One merge for all: searching each curve for each instant takes several times as long for millions.
    order = np.argsort(every, kind="stable")
    merged, whose = every[order], whose[order]
    ends = np.flatnonzero(np.append(merged[1:] != merged[:-1], True))  # the last point of each instant
    grid: Ints = merged[ends]
    curves: dict[str, Ints] = {}
    for number, (name, (_, values)) in enumerate(points.items()):
        place = np.cumsum(whose == number)[ends]  # how many of its points are past: 0 for none yet
        curves[name] = np.concatenate([np.zeros(1, np.int64), values])[place]
    return grid, curves


def _arranged(series: list[Series]) -> tuple[Series, ...]:
    """The series from the bottom: stable ones first; those too small to be told apart are merged."""
    if all(one.name in CATEGORY_ORDER for one in series):
        return tuple(sorted(series, key=lambda one: CATEGORY_ORDER.index(one.name)))
    ranked = sorted(series, key=lambda one: (-one.peak_bytes(), one.name))
    if len(ranked) <= SERIES_MAX:
        return tuple(ranked)
    rest: Ints = np.stack([one.values_bytes for one in ranked[SERIES_MAX - 1 :]]).sum(axis=0)
    return (
        *ranked[: SERIES_MAX - 1],
        Series(name=f"{len(ranked) - SERIES_MAX + 1} others", values_bytes=rest),
    )


def columns(chart: Chart, width: int) -> Ints:
    """For each of ``width`` equal buckets of time the position of the instant that represents it.

    It is the one with the highest top, including the value at the start of the bucket: a picture of these
    alone has every maximum of the top. The chart has at least one instant; ``width`` is at least 1.
    """
    begin, end = bucket_slices(chart, width)
    top = chart.total_bytes()
    return np.array([b + int(top[b:e].argmax()) for b, e in zip(begin, end, strict=True)], np.int64)


def bucket_slices(chart: Chart, width: int) -> tuple[Ints, Ints]:
    """The same buckets as slices of positions, first and one past last; each has at least one position."""
    first, last = int(chart.times_ns[0]), int(chart.times_ns[-1])
    edges = first + np.arange(width + 1, dtype=np.int64) * (last - first) // width
    begin = np.searchsorted(chart.times_ns, edges[:-1], side="right") - 1
    end = np.searchsorted(chart.times_ns, np.append(edges[1:-1], last + 1), side="left")
    return begin, np.maximum(end, begin + 1)


def reduced(chart: Chart, points_max: int) -> Chart:
    """The chart with at most ``points_max`` of its instants, every maximum of every series kept.

    Time is cut into equal buckets; of each stay the first instant, the lowest of the top, and the highest of
    the top and of each series. A bucket without an instant has none: the value before it holds. Where one
    bucket needs more points (the series and four), that many stay.
    """
    if len(chart.times_ns) <= points_max:
        return chart
    count = points_max
    kept = _kept(chart, count)
    while len(kept) > points_max and count > 1:
        count //= 2
        kept = _kept(chart, count)
    series = tuple(Series(name=one.name, values_bytes=one.values_bytes[kept]) for one in chart.series)
    return replace(chart, times_ns=chart.times_ns[kept], series=series)


def _kept(chart: Chart, count: int) -> Ints:
    """Positions to keep, ascending, each once; the last instant is always there."""
    first, last = int(chart.times_ns[0]), int(chart.times_ns[-1])
    bucket = (chart.times_ns - first) * count // max(1, last - first + 1)
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    top = chart.total_bytes()
    kept = [starts, np.array([len(top) - 1], np.int64), _arg_of_each(-top, starts), _arg_of_each(top, starts)]
    kept += [_arg_of_each(one.values_bytes, starts) for one in chart.series]
    return np.unique(np.concatenate(kept))


def _arg_of_each(values: Ints, starts: Ints) -> Ints:
    """Position of the first highest value in each bucket."""
    highest = np.maximum.reduceat(values, starts)
    lengths = np.diff(starts, append=len(values))
    hits = np.flatnonzero(values == np.repeat(highest, lengths))
    _, first = np.unique(np.searchsorted(starts, hits, side="right"), return_index=True)
    return hits[first]
