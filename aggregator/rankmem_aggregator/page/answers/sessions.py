"""Which sessions there are.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.parameters import integer, parameter
from rankmem_aggregator.page.reading import of_database
from rankmem_aggregator.page.routes import DatabaseRoute
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import page_text

SESSIONS_MAX: Final = 500
"""Of a list that a person reads, the newest; ``rankmem sql`` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsAsked:
    """Parameters of ``/sessions``."""

    limit: int = parameter(integer(1, SESSIONS_MAX), "sessions at most", default=SESSIONS_MAX)


def sessions(queries: Queries, asked: SessionsAsked) -> pa.Table:
    """All sessions, the newest first. Columns: those of ``sql/page/sessions.sql``."""
    given = {"at_most": asked.limit}
    rows = queries.sql(page_text("sessions"), given)
    return of_database(rows, source="session_overview", sql=as_sql(page_text("sessions"), given))


ROUTES: Final = (DatabaseRoute(path="/sessions", parameters=SessionsAsked, answer=sessions),)
