"""A second chance for the page's own statements after a crash of the aggregator.

Stage: page, shared by the readers. An aggregator refuses the statement that ran as it crashed. A live page
asks the same few statements every second, so where the kernel kills an aggregator, or an operator does, it
is most likely one of these that ran, and the page would stay dark until somebody restarts ``rankmem
serve``. So a statement of the page's own, never one that a user wrote, is worded anew: with a number before
it. If it was the cause after all, it crashes an aggregator a few times, a minute apart, and then stays
refused.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import Final

from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.sql import page_texts, query_names, query_text

CHANCES: Final = 5
"""Of a statement, for as long as the page runs."""
APART_S: Final = 60.0


class SecondChances:
    """How often each statement was worded anew, and when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[str, tuple[int, float]] = {}

    def current(self, text: str) -> str:
        """The statement with its number, if it has one."""
        number, _ = self._given.get(text, (0, 0.0))
        return text if not number else f"-- asked again after a crash: {number}\n{text}"

    def next(self, text: str) -> bool:
        """Gives a statement the next number, where it is the page's own and has chances left."""
        if text not in _own():
            return False
        now_s = time.monotonic()
        with self._lock:
            number, since_s = self._given.get(text, (0, float("-inf")))
            if number >= CHANCES or now_s - since_s < APART_S:
                return False
            self._given[text] = number + 1, now_s
        return True

    def to(self, queries: Queries) -> Queries:
        """The same reader, whose statements have chances."""
        if isinstance(queries, RemoteQueries):
            queries.rewording = self
        return queries


@cache
def _own() -> frozenset[str]:
    named = (query_text(name) for name in query_names())
    return page_texts().union(named)
