"""Curves of ranks together: of the whole job, of each host, or along a parallel coordinate.

Stage: page, in the thread of a request. Points are those of ``Queries.timeline``, of the highest groups
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.answers.heat import FIGURES
from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.parameters import DEVICE_TYPE, TIME, check_range, choice, integer, parameter
from rankmem_aggregator.page.rank_matrix import COORDINATES
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.whole_session import first_device_type
from rankmem_aggregator.query.timeline_facts import Timeline
from rankmem_aggregator.query.types import CurveBy, Figure
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError

BY: Final = ("job", "host", "rank", *COORDINATES)
CURVES_MAX: Final = 64
POINTS_MAX: Final = 4096
LIMIT_S: Final = 30.0
"""A sum over many ranks sorts all of their events."""
_NO_CURVES: Final = pa.schema(
    {"group": pa.string(), "time_ns": pa.int64(), "bytes": pa.int64()}
).empty_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksCurveAsked:
    """Parameters of ``/ranks_curve``."""

    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end", name="to", default=None)
    by: str = parameter(choice(BY), "what is added up", default="job")
    figure: str = parameter(choice(FIGURES), "which bytes", default="requested")
    device_type: str | None = parameter(DEVICE_TYPE, "type of device, as in /heat", default=None)
    points: int = parameter(integer(64, POINTS_MAX), "of a curve, at most", default=1000)
    curves: int = parameter(integer(1, CURVES_MAX), "the highest so many", default=12)


def ranks_curve(reading: Reading, asked: RanksCurveAsked) -> pa.Table:
    """Curve after curve, the highest first, each in order of time: group, time_ns, bytes.

    Empty where no rank has events with times there: nothing can be added up.

    Facts: by, figure, by_second (read by the second: each rank at its highest of it), num_curves (before the
    highest were chosen), num_ranks, num_hosts; exact: every event is drawn.
    """
    check_range(asked.from_ns, asked.until_ns)
    device_type = asked.device_type or first_device_type(reading)
    try:
        found = reading.queries.timeline(
            reading.session.session_id,
            by=cast(CurveBy, asked.by),
            figure=cast(Figure, asked.figure),
            rank="all",
            device=device_type,
            from_ns=reading.absolute(asked.from_ns),
            until_ns=reading.absolute(asked.until_ns),
            points=asked.points,
        )
    except RankmemError as exc:
        if exc.code is not Code.NOT_FOUND:
            raise
        return reading.answer(_NO_CURVES, exact=True, source="memory_event", by=asked.by, figure=asked.figure)
    facts = Timeline.of(found).facts
    reading.shown_as(
        as_sql(
            query_text("curve_by_ranks"),
            {
                "session": reading.session.session_id,
                "by": asked.by,
                "device_type": device_type,
                "figure": asked.figure,
                "ranks": None,
                "from_ns": reading.absolute(asked.from_ns),
                "until_ns": reading.absolute(asked.until_ns),
                "by_second": facts.by_second,
            },
        )
    )
    rows, num_curves = _highest(found, asked.curves)
    return reading.answer(
        reading.relative(rows, "time_ns"),
        exact=facts.exact,
        source="memory_bucket" if facts.by_second else "memory_event",
        by=asked.by,
        figure=asked.figure,
        by_second=bool(facts.by_second),
        num_curves=num_curves,
        num_ranks=facts.num_ranks,
        num_hosts=facts.num_hosts,
    )


def _highest(rows: pa.Table, curves: int) -> tuple[pa.Table, int]:
    """The curves that reach highest, and how many there are."""
    rows = rows.select(["group", "time_ns", "bytes"]).replace_schema_metadata(None)
    tops = rows.group_by("group", use_threads=False).aggregate([("bytes", "max")])
    names = tops["group"].take(pc.sort_indices(pc.negate(tops["bytes_max"])))[:curves]
    place = pc.index_in(rows["group"], value_set=names.combine_chunks())
    chosen = rows.append_column("place", place).filter(pc.is_valid(place))
    order = np.argsort(chosen["place"].to_numpy(), kind="stable")
    return chosen.take(pa.array(order)).drop_columns(["place"]), len(tops)


ROUTES: Final = (
    SessionRoute(path="/ranks_curve", parameters=RanksCurveAsked, answer=ranks_curve, limit_s=LIMIT_S),
)
