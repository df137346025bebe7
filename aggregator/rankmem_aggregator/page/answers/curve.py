"""The curve of a device of a rank: its figures over time, from the whole down to each event.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page.columns import (
    COLUMN_EVENTS_MAX,
    FIGURES,
    NOTES,
    UNKNOWN,
    Columns,
    Integers,
    columns_of,
)
from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    TIME,
    check_range,
    choices,
    integer,
    parameter,
)
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.page.routes import SessionRoute

PX_MAX: Final = 4096
"""Columns of a picture: the widest screen has no more."""
PX_DEFAULT: Final = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAsked:
    """Parameters of ``/curve``."""

    rank: int = parameter(RANK, "global rank")
    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    px: int = parameter(integer(1, PX_MAX), "columns to draw at most", default=PX_DEFAULT)
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    figures: tuple[str, ...] = parameter(choices(FIGURES), "which, with commas between", default=FIGURES)
    since_ns: int | None = parameter(
        TIME, "rows from this instant on alone, where that can be told", name="since", default=None
    )


def curve(reading: Reading, asked: CurveAsked) -> pa.Table:
    """Rows in order of time, each of which holds until the next one begins.

    Columns: time_ns (since the session's start), seq (of the event, or of the highest requested bytes), each
    figure that is known (bytes: after the event, or the highest) and with ``_low`` the lowest where a row is
    no single event. Of events also action, size_bytes, address.
    Facts: since_ns, where the first row is the first that begins then or later; NULL: they are all.
    """
    check_range(asked.from_ns, asked.until_ns)
    track = reading.track(asked.rank, asked.attempt, asked.device)
    origin_ns = reading.session.origin_ns
    columns = columns_of(reading, track, asked.from_ns + origin_ns, asked.until_ns + origin_ns, asked.px)
    found = pa.table(rows_of(reading, columns, asked.figures))
    since_ns = _begin_of(asked, columns)
    if since_ns is not None:
        is_new = columns.time_ns - origin_ns >= since_ns
        found = found.slice(int(np.argmax(is_new)) if is_new.any() else len(is_new))
    return reading.answer(
        found,
        exact=columns.drawn != "highest",
        source=columns.source,
        since_ns=since_ns,
        **facts_of_columns(reading, track, columns),
    )


def _begin_of(asked: CurveAsked, columns: Columns) -> int | None:
    """The instant from which on rows are sent; None for all: a row of buckets may begin with an older one."""
    if asked.since_ns is None or columns.drawn == "highest":
        return None
    if columns.drawn == "events":
        return asked.since_ns
    width_ns = (asked.until_ns - asked.from_ns) // asked.px + 1
    return asked.from_ns + max(0, asked.since_ns - asked.from_ns) // width_ns * width_ns


def rows_of(reading: Reading, columns: Columns, figures: tuple[str, ...]) -> dict[str, Any]:
    """The columns of ``/curve`` by name."""
    found: dict[str, Any] = {
        "time_ns": pa.array(columns.time_ns - reading.session.origin_ns),
        "seq": nullable(columns.seq),
    }
    known = columns.figures()
    for name in (each for each in FIGURES if each in figures and each in known):
        found[name] = nullable(columns.high[name])
        if columns.events is None and columns.low:
            found[f"{name}_low"] = nullable(columns.low[name])
    if columns.events is not None:
        found |= {name: columns.events[name] for name in ("action", "size_bytes", "address")}
    return found


def facts_of_columns(reading: Reading, track: Track, columns: Columns) -> dict[str, object]:
    """What curve and groups tell beside their rows."""
    origin_ns = reading.session.origin_ns
    started_ns, ended_ns = columns.life.started_ns, columns.life.ended_ns
    return {
        "rank": track.rank,
        "attempt": track.attempt,
        "device": track.device,
        "host_name": track.host_name,
        "figures": list(columns.figures()),
        "drawn": columns.drawn,
        "note": NOTES[columns.drawn],
        "why": (
            f"the lowest of a pixel is known where there are at most {COLUMN_EVENTS_MAX:,} events"
            if columns.drawn == "highest"
            else ""
        ),
        "events": columns.life.events,
        "started_ns": None if started_ns is None else started_ns - origin_ns,
        "ended_ns": None if ended_ns is None else ended_ns - origin_ns,
    }


def nullable(values: Integers) -> pa.Array:
    """The values as Arrow has them, NULL where they are not known."""
    unknown = values == UNKNOWN
    return pa.array(values, pa.int64(), mask=unknown) if np.any(unknown) else pa.array(values, pa.int64())


ROUTES: Final = (SessionRoute(path="/curve", parameters=CurveAsked, answer=curve),)
