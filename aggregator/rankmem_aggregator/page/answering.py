"""Answers of routes: from memory, from a computation that is under way, or computed in a thread.

Stage: page, in uvicorn's event loop, between ``app`` and ``answers``. An answer about a session is kept for
the session's watermark, which is looked up at most once a second, once for all who ask.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from rankmem_aggregator.page.cache import AnswerCache, Body, Computing, Key
from rankmem_aggregator.page.exported import FILE_S
from rankmem_aggregator.page.parameters import read_parameters
from rankmem_aggregator.page.pool import Pool, Ticket
from rankmem_aggregator.page.reading import PageSession, Reading
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_aggregator.query.missing import and_later
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import SessionId
from rankmem_aggregator.sql import page_text
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 16 << 20
STATE_FRESH_S: Final = 1.0
"""A running session's watermark is asked for at most so often: stored rows are as old as that anyway."""
STATES_MAX: Final = 1024
"""Sessions whose watermark is known; the oldest is looked up again."""
SESSION_CHARS_MAX: Final = 128
"""Of a session's id; those that rankmem makes have 12."""
T = TypeVar("T")
Pairs = Sequence[tuple[str, str]]


@dataclass(slots=True)
class Answering:
    """What computes answers."""

    pool: Pool
    cache: AnswerCache = field(default_factory=AnswerCache)
    computing: Computing = field(default_factory=Computing)
    _states: dict[str, tuple[float, PageSession]] = field(default_factory=dict)

    async def of_database(self, route: DatabaseRoute, pairs: Pairs) -> Body:
        """The answer of a route about the whole database."""
        asked = read_parameters(route.parameters, pairs)

        def compute(ticket: Ticket) -> Body:
            reader = self.pool.reader(ticket, limit_s=route.limit_s)
            with reader as queries, queries.given_options.in_hints():
                answer = route.answer(queries, asked)
                return Body.of(arrow_bytes(and_later(answer, queries.stale)))

        return await self.computing.once((route.path, *_texts(pairs)), _guarded(compute, route.path))

    async def of_session(self, route: SessionRoute, session_id: str, pairs: Pairs) -> Body:
        """The answer of a route about a session."""
        asked = read_parameters(route.parameters, pairs)
        state = await self.state(session_id)
        others = {each: await self.state(each) for each in route.others(asked)}
        seen = [state.watermark, *(each.watermark for each in others.values())]
        key = (state.session_id, *seen, route.path, *_texts(pairs))
        if not state.stale and (kept := self.cache.get(key)) is not None:
            return kept

        def compute(ticket: Ticket) -> tuple[Body, bool]:
            with self.pool.reader(ticket, limit_s=route.seconds(asked)) as queries:
                reading = Reading(queries=queries, session=state, others=others)
                with reading.given.in_hints():
                    body = Body.of(arrow_bytes(route.answer(reading, asked)))
                return body, bool(state.stale or queries.stale)

        body, is_stale = await self.computing.once(key, _guarded(compute, route.path))
        if not is_stale:  # it says so, and the watermark does not move when the store is back
            self.cache.keep(key, body)
        return body

    async def file(self, session_id: str, key: Key, make: Callable[[Reading], bytes]) -> bytes:
        """A file about a session, made for who asks now, and not kept."""
        state = await self.state(session_id)

        def compute(ticket: Ticket) -> bytes:
            with self.pool.reader(ticket, limit_s=FILE_S) as queries:
                reading = Reading(queries=queries, session=state)
                with reading.given.in_hints():
                    return make(reading)

        return await self.computed(("file", session_id, state.watermark, *key), compute)

    async def computed(self, key: Key, compute: Callable[[Ticket], T]) -> T:
        """What ``compute`` returns, in a thread, once for all who ask for this key now."""
        return await self.computing.once(key, _guarded(compute, "/".join(key)[:200]))

    async def state(self, session_id: str, *, fresh_s: float = STATE_FRESH_S) -> PageSession:
        """The state of a session, at most so old.

        Raises:
            RankmemError: NOT_FOUND.
        """
        if len(session_id) > SESSION_CHARS_MAX or "\0" in session_id:
            raise _no_session(session_id, "this database")
        known = self._states.get(session_id)
        if known is not None and time.monotonic() - known[0] < fresh_s:
            return known[1]

        def look(ticket: Ticket) -> tuple[float, PageSession]:
            asked_s = time.monotonic()
            with self.pool.reader(ticket) as queries:
                return asked_s, state_of(queries, session_id)

        try:
            found = await self.computing.once(("", session_id), _guarded(look, "state"))
        except RankmemError:
            self._states.pop(session_id, None)
            raise
        while len(self._states) >= STATES_MAX:
            del self._states[next(iter(self._states))]
        self._states[session_id] = found
        return found[1]


def state_of(queries: Queries, session_id: str) -> PageSession:
    """The state of a session, asked now.

    Raises:
        RankmemError: NOT_FOUND.
    """
    rows = queries.sql(page_text("session_state"), {"session": session_id}).to_pylist()
    if not rows:
        raise _no_session(session_id, queries.target)
    session = SessionId(rows[0]["session_id"])
    return PageSession(**{**rows[0], "session_id": session, "stale": queries.stale})


def arrow_bytes(answer: pa.Table) -> bytes:
    """An answer as an Arrow IPC stream.

    Raises:
        RankmemError: EXHAUSTED where it is larger than an answer may be.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, answer.schema) as writer:
        writer.write_table(answer.combine_chunks())
    body: bytes = sink.getvalue().to_pybytes()
    if len(body) > ANSWER_BYTES_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"the answer has {len(body):,} bytes, more than {ANSWER_BYTES_MAX:,}",
            "choose a shorter range or fewer rows; rankmem sql --out FILE has no limit",
        )
    return body


def _guarded(compute: Callable[[Ticket], T], path: str) -> Callable[[Ticket], T]:
    """The same, with a defect of ours in the log and not in the answer."""

    def guarded(ticket: Ticket) -> T:
        try:
            return compute(ticket)
        except RankmemError:
            raise
        except Exception as exc:
            logger.exception("no answer of %s", path)
            raise RankmemError(
                Code.INTERNAL,
                "this answer failed by a defect of rankmem",
                "see the page's log; please report it",
            ) from exc

    return guarded


def _texts(pairs: Pairs) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in sorted(pairs))


def _no_session(session_id: str, target: str) -> RankmemError:
    return RankmemError(
        Code.NOT_FOUND, f"no session {session_id[:80]!r} in {target}", "choose one of the list of sessions"
    )
