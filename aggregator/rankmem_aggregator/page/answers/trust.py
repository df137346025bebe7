"""Whether an answer can be relied on: what is missing and where, the clocks, and what recording cost.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import NoParameters, SessionRoute

GAPS_MAX: Final = 2000
"""Holes of an answer: more cannot be told apart on a screen."""


def missing(reading: Reading, asked: NoParameters) -> pa.Table:
    """What is missing of each rank, figures of bytes first. Columns: those of ``sql/page/missing.sql``."""
    rows = reading.relative(reading.show("missing"), "since_ns")
    return reading.answer(rows, exact=True, source="incompleteness")


def gaps(reading: Reading, asked: NoParameters) -> pa.Table:
    """Where the holes of the logs lie in time. Columns: those of ``sql/page/gaps.sql``.

    Facts: cut, true where there are more than GAPS_MAX, of which these are those of the lowest ranks.
    """
    rows = reading.relative(reading.show("gaps", at_most=GAPS_MAX + 1), "from_ns", "until_ns")
    return reading.answer(rows[:GAPS_MAX], exact=False, source="gap", cut=len(rows) > GAPS_MAX)


def clocks(reading: Reading, asked: NoParameters) -> pa.Table:
    """The offset of each host's clock and its error. Columns: those of ``sql/page/clocks.sql``.

    ``offset_ns`` is text: clocks that began elsewhere than at 1970 are further off than a double holds.
    """
    rows = reading.show("clocks")
    place = rows.schema.get_field_index("offset_ns")
    rows = rows.set_column(place, "offset_ns", rows["offset_ns"].cast(pa.string()))
    return reading.answer(rows, exact=True, source="rank_span")


def delivery(reading: Reading, asked: NoParameters) -> pa.Table:
    """How far each rank is stored and at what cost. Columns: those of ``sql/page/delivery.sql``."""
    rows = reading.relative(reading.show("delivery"), "last_event_ns")
    return reading.answer(rows, exact=True, source="rank_status")


ROUTES: Final = tuple(
    SessionRoute(path=f"/{answer.__name__}", parameters=NoParameters, answer=answer)
    for answer in (missing, gaps, clocks, delivery)
)
