"""Rows of a curve from the rows of SQL: what a device held already, what holds between intervals."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from rankmem_aggregator.page.columns import FIGURES, UNKNOWN, Columns, Life, of_columns, of_events

PARTS = tuple(f"{name}{part}" for name in FIGURES for part in ("", "_low", "_last"))


def life(**entry: int | None) -> Life:
    """A process that held this when the range began, after event 7."""
    return Life(
        started_ns=0,
        ended_ns=None,
        events=10,
        entry_seq=7 if entry else None,
        entry={name: entry.get(name) for name in FIGURES},
    )


def intervals(*rows: dict[str, Any]) -> pa.Table:
    """Rows as curve_columns.sql has them; what is left out is NULL."""
    names = ("place", "first_ns", "events", "seq", "last_seq", "end_ns", *PARTS)
    return pa.table({name: pa.array([row.get(name) for row in rows], pa.int64()) for name in names})


def requested(place: int, first_ns: int, seq: int, high: int, low: int, last: int) -> dict[str, Any]:
    """An interval with two events."""
    return {
        "place": place,
        "first_ns": first_ns,
        "end_ns": first_ns + 1,
        "seq": seq,
        "last_seq": seq + 1,
        "requested": high,
        "requested_low": low,
        "requested_last": last,
    }


def told(columns: Columns) -> list[tuple[int, int, int, int]]:
    """time, seq, highest, lowest of each row."""
    low = columns.low["requested"] if columns.low else [UNKNOWN] * len(columns.time_ns)
    rows = zip(columns.time_ns, columns.seq, columns.high["requested"], low, strict=True)
    return [tuple(int(value) for value in row) for row in rows]  # type: ignore[misc]


def test_what_stood_when_an_interval_began_counts_as_its_highest_and_lowest() -> None:
    rows = intervals(requested(0, 3, 10, 50, 20, 20), requested(1, 14, 20, 15, 12, 15))
    assert told(of_columns(rows, life(), 0, 10, 19, has_lowest=True)) == [(0, 10, 50, 20), (10, 11, 20, 12)]


def test_an_event_at_the_very_beginning_of_an_interval_ends_what_stood_before() -> None:
    rows = intervals(requested(0, 3, 10, 50, 20, 50), requested(1, 10, 20, 15, 12, 15))
    assert told(of_columns(rows, life(), 0, 10, 19, has_lowest=True))[1] == (10, 20, 15, 12)


def test_between_intervals_the_last_value_holds() -> None:
    rows = intervals(requested(0, 3, 10, 50, 20, 30), requested(4, 44, 20, 90, 80, 80))
    assert told(of_columns(rows, life(), 0, 10, 99, has_lowest=True)) == [
        (0, 10, 50, 20),
        (10, 11, 30, 30),
        (40, 20, 90, 30),
        (50, 21, 80, 80),
    ]


def test_a_range_begins_with_what_the_device_held() -> None:
    rows = intervals(requested(2, 23, 10, 50, 45, 50))
    found = of_columns(rows, life(requested=40), 0, 10, 29, has_lowest=True)
    assert told(found) == [(0, 7, 40, 40), (20, 10, 50, 40)]
    empty = of_columns(intervals(), life(requested=40), 0, 10, 29, has_lowest=True)
    assert told(empty) == [(0, 7, 40, 40)]


def test_nothing_is_drawn_before_the_first_event() -> None:
    rows = intervals(requested(2, 23, 10, 50, 45, 50))
    assert told(of_columns(rows, life(), 0, 10, 29, has_lowest=True)) == [(20, 10, 50, 45)]
    assert told(of_columns(intervals(), life(), 0, 10, 29, has_lowest=True)) == []


def test_of_buckets_an_interval_begins_with_its_first_event_and_ends_with_its_last() -> None:
    late = requested(0, 3, 10, 50, 20, 30) | {"end_ns": 17}
    found = of_columns(intervals(late, requested(4, 44, 20, 90, 80, 80)), life(), 0, 10, 99, has_lowest=False)
    assert told(found) == [
        (3, 10, 50, UNKNOWN),
        (18, 11, 30, UNKNOWN),
        (44, 20, 90, UNKNOWN),
        (50, 21, 80, UNKNOWN),
    ]


def test_a_figure_without_a_value_in_an_interval_keeps_its_last_one() -> None:
    sample = {"place": 3, "process": 700, "process_low": 600, "process_last": 650}
    found = of_columns(intervals(requested(1, 13, 10, 5, 4, 4), sample), life(), 0, 10, 99, has_lowest=True)
    assert found.figures() == ("requested", "process")
    assert found.high["process"].tolist() == [UNKNOWN, UNKNOWN, 700, 650]
    assert found.low["process"].tolist() == [UNKNOWN, UNKNOWN, 600, 650]
    assert found.high["requested"].tolist() == [5, 4, 4, 4]


def test_every_event_is_a_row_after_what_was_held_before() -> None:
    names = ("time_ns", "seq", "size_bytes", *FIGURES)
    rows = [{"time_ns": 5, "seq": 9, "requested": 60}, {"time_ns": 6, "seq": 10, "process": 5}]
    table = pa.table(
        {name: pa.array([row.get(name) for row in rows], pa.int64()) for name in names}
        | {name: pa.array(["a", None], pa.string()) for name in ("action", "address")}
    )
    found = of_events(table, life(requested=40), 2)
    assert told(found) == [(2, 7, 40, 40), (5, 9, 60, 60), (6, 10, 60, 60)]
    assert found.high["process"].tolist() == [UNKNOWN, UNKNOWN, 5]
    assert found.events is not None
    assert found.events["action"].to_pylist() == [None, "a", None]
