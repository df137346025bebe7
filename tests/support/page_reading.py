"""Answers of the page without HTTP: the route's own function over a database file.

Stage: tests. Parameters go through the same reading as those of a request; ``from_`` means from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rankmem_aggregator.page.answering import state_of
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.parameters import read_parameters
from rankmem_aggregator.page.reading import PageSession, Reading, facts_of
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.query.local import LocalQueries
from rankmem_aggregator.query.queries import Queries

_ROUTES = {route.path: route for route in ROUTES if isinstance(route, SessionRoute)}


@dataclass(frozen=True, slots=True)
class PageReader:
    """Asks the routes of one session."""

    queries: Queries
    session: PageSession

    def reading(self) -> Reading:
        """What an answer reads from."""
        return Reading(queries=self.queries, session=self.session)

    def ask(self, path: str, **parameters: Any) -> pa.Table:
        """The answer of ``/api/v1/s/{session}{path}``."""
        route = _ROUTES[path]
        pairs = [(name.rstrip("_"), str(value)) for name, value in parameters.items() if value is not None]
        return route.answer(self.reading(), read_parameters(route.parameters, pairs))

    def facts(self, path: str, **parameters: Any) -> dict[str, Any]:
        """The facts of that answer."""
        return facts_of(self.ask(path, **parameters))


@contextlib.contextmanager
def page_reader(path: Path, session: str | None = None) -> Iterator[PageReader]:
    """A reader of the file's session."""
    with LocalQueries(path) as queries:
        yield PageReader(queries, state_of(queries, queries.session_id(session)))
