"""A session as a whole: its span, and its ranks with their peaks.

Stage: page, in the thread of a request. What every view begins with: choosers, tiles, the range of time.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import NoParameters, SessionRoute

TIMES: Final = ("peak_ns", "started_ns", "ended_ns")


def job(reading: Reading, asked: NoParameters) -> pa.Table:
    """The devices of all ranks; columns: those of ``sql/page/ranks.sql``.

    Facts: ``session``, its row of ``sql/page/session_span.sql`` without times; first_ns and last_ns, its
    range of time since its start.
    """
    rows = reading.show("ranks")
    span = reading.ask("session_span").to_pylist()[0]
    origin_ns = reading.session.origin_ns
    first_ns, last_ns = span.pop("first_ns"), span.pop("last_ns")
    return reading.answer(
        reading.relative(rows, *TIMES),
        exact=True,
        source="peak_by_rank",
        first_ns=0 if first_ns is None else first_ns - origin_ns,
        last_ns=1 if last_ns is None else max(last_ns - origin_ns, 1),
        session=span,
    )


ROUTES: Final = (SessionRoute(path="/job", parameters=NoParameters, answer=job),)
