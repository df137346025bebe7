"""A session as a whole: its span, and its ranks with their peaks.

Stage: page, in the thread of a request. What every view begins with: choosers, tiles, the range of time.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import NoParameters, SessionRoute
from rankmem_aggregator.page.whole_session import WholeSession

TIMES: Final = ("peak_ns", "started_ns", "ended_ns")


def job(reading: Reading, asked: NoParameters) -> pa.Table:
    """The devices of all ranks; columns: those of ``sql/page/ranks.sql``.

    Facts: ``session``, its row of ``sql/page/session_span.sql`` without times; first_ns and last_ns, its
    range of time since its start; options, with which a command asks about the session.
    """
    rows = reading.show("ranks")
    whole = WholeSession.of(reading)
    return reading.answer(
        reading.relative(rows, *TIMES),
        exact=True,
        source="peak_by_rank",
        first_ns=whole.first_ns,
        last_ns=whole.last_ns,
        session=whole.facts,
        options=reading.given.text(),
    )


ROUTES: Final = (SessionRoute(path="/job", parameters=NoParameters, answer=job),)
