"""A device's memory over a range of time as a screen has room for it: every event, or the columns of pixels.

Stage: page, in the thread of a request. In: a track, a range, a number of pixels. Out: rows in order of time,
each of which holds until the next one begins. Where there are few events every one is a row; where there are
more, a row is an interval of the range, with the highest and the lowest of each figure within it, what it
held when the interval began included. Only for very many events are they read from buckets, which do not
have the lowest. Curve and groups both draw these rows, so that they agree to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.query.types import Value

FIGURES: Final = ("requested", "allocated", "active", "reserved", "process")
"""What is known of a device over time; the first is summed from blocks, the others are reported."""
EVENTS_PER_PIXEL: Final = 3
"""As long as there are at most so many, every one is drawn."""
COLUMN_EVENTS_MAX: Final = 2_000_000
"""Events of a range that are read for the columns of a screen: about 100 ms of CPU. Beyond, buckets are."""

Integers = npt.NDArray[np.int64]
Drawn = Literal["events", "highest and lowest", "highest"]
UNKNOWN: Final = np.iinfo(np.int64).min
"""In place of NULL."""

NOTES: Final[dict[Drawn, str]] = {
    "events": "every event is drawn",
    "highest and lowest": "highest and lowest of each pixel are drawn",
    "highest": "highest of each pixel is drawn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A process and what its device held when a range began."""

    started_ns: int | None
    """On the common clock, as all times here."""
    ended_ns: int | None
    events: int
    """At least as many as are in the range."""
    entry_seq: int | None
    entry: dict[str, int | None]
    """By figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Rows of a curve; all arrays have their length."""

    drawn: Drawn
    source: str
    life: Life
    time_ns: Integers
    """When a row begins, on the common clock."""
    seq: Integers
    """The event after which requested bytes stood highest in it; UNKNOWN where there is none."""
    high: dict[str, Integers]
    """By figure, UNKNOWN where it is not known."""
    low: dict[str, Integers]
    """Empty where the lowest is not known."""
    last_seq: Integers
    """The last event by the end of the row."""
    events: pa.Table | None
    """The rows of ``curve_events.sql`` where every event is drawn, one for each row."""

    def figures(self) -> tuple[str, ...]:
        """Those of which anything is known."""
        return tuple(name for name in FIGURES if np.any(self.high[name] != UNKNOWN))


def columns_of(reading: Reading, track: Track, from_ns: int, until_ns: int, px: int) -> Columns:
    """The rows of a range; times on the common clock, both ends included."""
    whose: dict[str, Value] = {"attempt": track.attempt, "rank": track.rank, "device": track.device}
    span: dict[str, Value] = {"from_ns": from_ns, "until_ns": until_ns}
    read = {**whose, **span, "offset_ns": track.offset_ns}
    life = _life(track, reading.ask("curve_span", **read))
    if life.events <= EVENTS_PER_PIXEL * px:
        return of_events(reading.show("curve_events", **read), life, from_ns)
    width_ns = (until_ns - from_ns) // px + 1
    if life.events <= COLUMN_EVENTS_MAX:
        rows = reading.show("curve_columns", **read, width_ns=width_ns)
        return of_columns(rows, life, from_ns, width_ns, until_ns, has_lowest=True)
    rows = reading.show("curve_buckets", **read, width_ns=width_ns)
    return of_columns(rows, life, from_ns, width_ns, until_ns, has_lowest=False)


def of_events(rows: pa.Table, life: Life, from_ns: int) -> Columns:
    """Every event a row; the first is what the device held already when the range began."""
    if _begins_with_entry(life):
        first: dict[str, list[object]] = {name: [None] for name in rows.column_names}
        first |= {
            "time_ns": [from_ns],
            "seq": [life.entry_seq],
            **{name: [life.entry[name]] for name in FIGURES},
        }
        rows = pa.concat_tables([pa.table(first, schema=rows.schema), rows])
    high = {name: _held(_integers(rows, name)) for name in FIGURES}
    seq = _integers(rows, "seq")
    return Columns(
        drawn="events",
        source="memory_event",
        life=life,
        time_ns=_integers(rows, "time_ns"),
        seq=seq,
        high=high,
        low=high,
        last_seq=seq,
        events=rows,
    )


def of_columns(
    rows: pa.Table, life: Life, from_ns: int, width_ns: int, until_ns: int, *, has_lowest: bool
) -> Columns:
    """Intervals as rows, and rows for what holds between them.

    Args:
        rows: of ``curve_columns.sql`` or ``curve_buckets.sql``.
        life: what the device held before.
        from_ns: begin of the range.
        width_ns: of an interval.
        until_ns: end of the range.
        has_lowest: the rows are of events: an interval begins where the grid has it. Of buckets it begins
            with its first event, since a bucket that begins before it may reach into it.
    """
    grid_ns = from_ns + _integers(rows, "place") * width_ns
    first_ns = _integers(rows, "first_ns")
    has_events = first_ns != UNKNOWN
    begin_ns = grid_ns if has_lowest else np.where(has_events, np.maximum(first_ns, grid_ns), grid_ns)
    is_entered = ~has_events | (begin_ns < first_ns)
    seq, last_seq = _integers(rows, "seq"), _held(_integers(rows, "last_seq"))
    entry_seq = UNKNOWN if life.entry_seq is None else life.entry_seq
    before_seq = _shifted(last_seq, entry_seq)
    high, low, last = {}, {}, {}
    for name in FIGURES:
        entered = UNKNOWN if (value := life.entry[name]) is None else value
        last[name] = _held(_integers(rows, f"{name}_last"), entered)
        before = _shifted(last[name], entered)
        own_high, own_low = _integers(rows, name), _integers(rows, f"{name}_low")
        counts = (before != UNKNOWN) & (is_entered | (own_high == UNKNOWN))
        if name == "requested":
            seq = np.where(counts & (before >= own_high), before_seq, seq)
        high[name] = np.where(counts, np.maximum(own_high, before), own_high)
        own_low = np.where(own_low == UNKNOWN, own_high, own_low)
        low[name] = np.where(counts & ((before < own_low) | (own_low == UNKNOWN)), before, own_low)
    after_ns = np.maximum(grid_ns + width_ns, np.where(has_events, _integers(rows, "end_ns") + 1, 0))
    holds = after_ns < np.append(begin_ns[1:], until_ns + 1)
    gap = np.flatnonzero(holds)
    at = gap + 1
    columns = Columns(
        drawn="highest and lowest" if has_lowest else "highest",
        source="memory_event" if has_lowest else "memory_bucket",
        life=life,
        time_ns=np.insert(begin_ns, at, after_ns[gap]),
        seq=np.insert(seq, at, np.where(last_seq == UNKNOWN, entry_seq, last_seq)[gap]),
        high={name: np.insert(high[name], at, last[name][gap]) for name in FIGURES},
        low={name: np.insert(low[name], at, last[name][gap]) for name in FIGURES} if has_lowest else {},
        last_seq=np.insert(last_seq, at, last_seq[gap]),
        events=None,
    )
    return _with_entry(columns, from_ns)


def _with_entry(columns: Columns, from_ns: int) -> Columns:
    """The rows, the first of which begins with the range where the device held something by then."""
    life = columns.life
    if not _begins_with_entry(life) or (len(columns.time_ns) and columns.time_ns[0] <= from_ns):
        return columns
    seq = UNKNOWN if life.entry_seq is None else life.entry_seq

    def first(values: Integers, value: int | None) -> Integers:
        return np.insert(values, 0, UNKNOWN if value is None else value)

    return Columns(
        drawn=columns.drawn,
        source=columns.source,
        life=life,
        time_ns=first(columns.time_ns, from_ns),
        seq=first(columns.seq, seq),
        high={name: first(columns.high[name], life.entry[name]) for name in columns.high},
        low={name: first(columns.low[name], life.entry[name]) for name in columns.low},
        last_seq=first(columns.last_seq, seq),
        events=None,
    )


def _begins_with_entry(life: Life) -> bool:
    return any(value is not None for value in life.entry.values())


def _life(track: Track, rows: pa.Table) -> Life:
    row = rows.to_pylist()[0]
    return Life(
        started_ns=track.started_ns,
        ended_ns=track.ended_ns,
        events=row["events"],
        entry_seq=row["entry_seq"],
        entry={name: row[name] for name in FIGURES},
    )


def _integers(rows: pa.Table, name: str) -> Integers:
    column = rows[name].cast(pa.int64()).combine_chunks()
    return np.asarray(column.fill_null(int(UNKNOWN)).to_numpy(zero_copy_only=False), np.int64)


def _held(values: Integers, before: int = UNKNOWN) -> Integers:
    """Each unknown value replaced by the one known before it."""
    if not len(values):
        return values
    known = np.maximum.accumulate(np.where(values != UNKNOWN, np.arange(len(values)), -1))
    return np.where(known >= 0, values[known], before)


def _shifted(values: Integers, first: int) -> Integers:
    """Of each row the value of the one before."""
    return np.concatenate([[first], values[:-1]]) if len(values) else values
