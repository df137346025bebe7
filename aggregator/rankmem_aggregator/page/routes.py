"""What a route is: a path, its parameters, and the function that answers.

Stage: page, contract between ``answers`` and ``app``. Imports no web framework: an answer is an Arrow table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from rankmem_aggregator.page.pool import QUESTION_S
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.query.queries import Queries


@dataclass(frozen=True, slots=True)
class NoParameters:
    """Of a route that takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRoute:
    """An answer about one session, at ``/api/v1/s/{session}`` + ``path``; kept until the session changes."""

    path: str
    parameters: type[Any]
    answer: Callable[[Reading, Any], pa.Table]
    limit_s: float = QUESTION_S
    limit_of: Callable[[Any], float] | None = None
    """Its limit by what is asked, where not all of it may take long."""
    others: Callable[[Any], tuple[str, ...]] = lambda asked: ()
    """Ids of other sessions that the answer depends on."""

    def seconds(self, asked: Any) -> float:
        """How long the answer may take."""
        return self.limit_s if self.limit_of is None else self.limit_of(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRoute:
    """An answer about the whole database, at ``/api/v1`` + ``path``; never kept."""

    path: str
    parameters: type[Any]
    answer: Callable[[Queries, Any], pa.Table]
    limit_s: float = QUESTION_S
    method: Literal["GET", "POST"] = "GET"
    """POST: its parameters are those of a JSON object, for what is too long for an address."""
