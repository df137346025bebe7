"""A page's answers without its HTTP: the function of a route over a database file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from rankmem_aggregator import connect
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.parameters import read_parameters
from rankmem_aggregator.page.reading import PageSession, Reading, facts_of
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.query.types import SessionId
from rankmem_aggregator.sql import page_text

_ROUTES = {route.path: route for route in ROUTES if isinstance(route, SessionRoute)}


class Answers:
    """An open database; ``ask("blocks", rank=0)`` is the answer of that route about its one session."""

    def __init__(self, path: str | Path, session: str | None = None) -> None:
        self.queries = connect(path)
        full_id = self.queries.session_id(session)
        row = self.queries.sql(page_text("session_state"), {"session": full_id}).to_pylist()[0]
        self.session = PageSession(**{**row, "session_id": SessionId(row["session_id"])})

    def ask(self, path: str, **parameters: Any) -> pa.Table:
        """The answer; ``from_`` is from, and None is left out."""
        route = _ROUTES[f"/{path}"]
        pairs = [(name.rstrip("_"), str(value)) for name, value in parameters.items() if value is not None]
        asked = read_parameters(route.parameters, pairs)
        return route.answer(Reading(queries=self.queries, session=self.session), asked)

    def facts(self, path: str, **parameters: Any) -> dict[str, Any]:
        """The facts of that answer."""
        return facts_of(self.ask(path, **parameters))

    def close(self) -> None:
        """Closes the database."""
        self.queries.close()
