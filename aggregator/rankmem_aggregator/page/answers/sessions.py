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
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import page_text

SESSIONS_MAX: Final = 500
"""Of a list that a person reads, the newest; ``rankmem sql`` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsAsked:
    """Parameters of ``/sessions``."""

    limit: int = parameter(integer(1, SESSIONS_MAX), "sessions at most", default=SESSIONS_MAX)


def sessions(queries: Queries, asked: SessionsAsked) -> pa.Table:
    """The newest sessions. Columns: those of ``sql/page/sessions.sql``.

    Facts: num_sessions, of all; options, with which a command asks the same store.
    """
    return _answer(queries, None, asked.limit, options=queries.given_options.text())


def session_alone(queries: Queries, session_id: str) -> pa.Table:
    """The same of one session, however old it is, as if there were no other."""
    return _answer(queries, session_id, 1)


def _answer(queries: Queries, session_id: str | None, at_most: int, **facts: str) -> pa.Table:
    given: dict[str, Value] = {"session": session_id, "at_most": at_most}
    rows = queries.sql(page_text("sessions"), given)
    num_sessions = rows.num_rows
    if session_id is None and num_sessions == at_most:
        num_sessions = queries.sql(page_text("num_sessions"))["num_sessions"][0].as_py()
    return of_database(
        rows,
        source="session_overview",
        sql=as_sql(page_text("sessions"), given),
        num_sessions=num_sessions,
        **facts,
    )


ROUTES: Final = (DatabaseRoute(path="/sessions", parameters=SessionsAsked, answer=sessions),)
