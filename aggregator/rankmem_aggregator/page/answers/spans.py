"""The steps and annotations of a rank over a range of time: what stands above its curve.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.answers.curve import PX_DEFAULT, PX_MAX
from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    TIME,
    check_range,
    integer,
    parameter,
)
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute

SPANS_MAX: Final = 2000
"""Of each kind: more than a screen has room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpansAsked:
    """Parameters of ``/spans``."""

    rank: int = parameter(RANK, "global rank")
    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    px: int = parameter(integer(1, PX_MAX), "leaves out annotations below a pixel", default=PX_DEFAULT)
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)


def spans(reading: Reading, asked: SpansAsked) -> pa.Table:
    """Steps, then annotations, in order of time. Columns: those of ``sql/page/spans.sql``."""
    check_range(asked.from_ns, asked.until_ns)
    track = reading.track(asked.rank, asked.attempt, asked.device)
    rows = reading.show(
        "spans",
        attempt=track.attempt,
        rank=track.rank,
        offset_ns=track.offset_ns,
        from_ns=reading.absolute(asked.from_ns),
        until_ns=reading.absolute(asked.until_ns),
        shortest_ns=(asked.until_ns - asked.from_ns) // asked.px,
        at_most=SPANS_MAX,
    )
    return reading.answer(reading.relative(rows, "begin_ns", "end_ns"), exact=True, source="step, marker")


ROUTES: Final = (SessionRoute(path="/spans", parameters=SpansAsked, answer=spans),)
