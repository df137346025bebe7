"""Curves on one grid, and pictures of fewer points: values hold until the next, and no maximum is lost."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.plots.curves import (
    SERIES_MAX,
    Chart,
    Ints,
    Series,
    chart_of,
    columns,
    on_one_grid,
    reduced,
)

BASE_NS = 1_700_000_000_000_000_000


def chart(times: list[int], *curves: list[int], stacked: bool = True) -> Chart:
    series = tuple(
        Series(name=f"part {n}", values_bytes=np.array(curve, np.int64)) for n, curve in enumerate(curves)
    )
    times_ns = BASE_NS + np.array(times, np.int64)
    return Chart(title="t", times_ns=times_ns, start_ns=BASE_NS, series=series, stacked=stacked)


def points(*pairs: tuple[int, int]) -> tuple[Ints, Ints]:
    times, values = np.array(pairs, np.int64).T
    return times, values


@st.composite
def charts(draw: st.DrawFn) -> Chart:
    times = sorted(draw(st.sets(st.integers(0, 10_000), min_size=1, max_size=200)))
    curve = st.lists(st.integers(0, 2**60), min_size=len(times), max_size=len(times))
    return chart(times, *draw(st.lists(curve, min_size=1, max_size=4)), stacked=draw(st.booleans()))


def test_a_curve_holds_its_value_until_its_next_point_and_is_nothing_before_its_first() -> None:
    grid, curves = on_one_grid({"a": points((10, 1), (20, 2)), "b": points((10, 100), (30, 300))})
    assert grid.tolist() == [10, 20, 30]
    assert curves["a"].tolist() == [1, 2, 2]
    assert curves["b"].tolist() == [100, 100, 300]
    _, late = on_one_grid({"a": points((10, 7)), "b": points((20, 8))})
    assert late["b"].tolist() == [0, 8]


def test_of_points_at_one_instant_the_last_holds() -> None:
    grid, curves = on_one_grid({"a": points((10, 5), (10, 3))})
    assert (grid.tolist(), curves["a"].tolist()) == ([10], [3])


@given(charts(), st.integers(9, 60))
def test_fewer_points_keep_every_maximum_and_no_more_than_asked(given_chart: Chart, points_max: int) -> None:
    fewer = reduced(given_chart, points_max)
    assert len(fewer.times_ns) <= points_max
    assert fewer.total_bytes().max() == given_chart.total_bytes().max()
    for one, whole in zip(fewer.series, given_chart.series, strict=True):
        assert one.peak_bytes() == whole.peak_bytes()
    assert set(fewer.times_ns.tolist()) <= set(given_chart.times_ns.tolist())
    assert fewer.times_ns[[0, -1]].tolist() == given_chart.times_ns[[0, -1]].tolist()


@given(charts(), st.integers(1, 50))
def test_each_column_shows_the_highest_instant_of_its_stretch(given_chart: Chart, width: int) -> None:
    """Held against a loop over columns and instants."""
    times, top = given_chart.times_ns.tolist(), given_chart.total_bytes().tolist()
    span = times[-1] - times[0]
    expected = []
    for column in range(width):
        start, end = (times[0] + span * n // width for n in (column, column + 1))
        held = [top[i] for i, t in enumerate(times) if t <= start][-1:]
        is_last = column == width - 1
        expected.append(
            max(held + [top[i] for i, t in enumerate(times) if start < t and (t < end or is_last)])
        )
    assert [top[i] for i in columns(given_chart, width)] == expected


def test_bytes_beyond_a_double_stay_exact() -> None:
    whole = chart([0, 1], [2**60 + 1, 0], [2, 0])
    assert int(whole.total_bytes()[0]) == 2**60 + 3


def timeline(groups: dict[str, int]) -> pa.Table:
    rows = [{"time_ns": BASE_NS + 5, "group": name, "bytes": size} for name, size in groups.items()]
    return pa.Table.from_pylist(rows)


def drawn(groups: dict[str, int], *, stacked: bool = True) -> dict[str, int]:
    made = chart_of(timeline(groups), start_ns=BASE_NS, stacked=stacked, title="t")
    return {one.name: one.peak_bytes() for one in made.series}


def test_categories_stand_in_their_order_whatever_their_size() -> None:
    assert list(drawn({"unknown": 9, "activation": 5, "parameter": 1})) == [
        "parameter",
        "activation",
        "unknown",
    ]


def test_many_groups_are_drawn_as_the_largest_and_all_others_together() -> None:
    groups = {f"module {n}": n for n in range(1, 21)}
    made = drawn(groups)
    assert len(made) == SERIES_MAX
    assert next(iter(made)) == "module 20"
    assert list(made)[-1] == "12 others"
    assert sum(made.values()) == sum(groups.values())


def test_curves_that_measure_one_thing_stay_as_they_come() -> None:
    assert list(drawn({"requested": 1, "reserved": 5}, stacked=False)) == ["requested", "reserved"]


def test_a_timeline_without_points_is_a_chart_without_series() -> None:
    empty = timeline({"a": 1}).slice(0, 0)
    made = chart_of(empty, start_ns=BASE_NS, stacked=True, title="t")
    assert (made.series, len(made.times_ns)) == ((), 0)
