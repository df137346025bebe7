"""The readers of a page: a few ``Queries``, each used by one request at a time.

Stage: page, shared by all request threads. A request waits for a reader for a bounded time, and its
question is interrupted when it has taken too long or its browser has gone. A reader that failed is closed and
opened anew when it is needed: its aggregator may be back, at another address.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rankmem_aggregator.query.asking import one_answer
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError

READERS: Final = 4
"""At once: DuckDB uses all cores for each question."""
LONG_MAX: Final = 2
"""Questions at a time that may take longer than :data:`QUESTION_S`: files, SQL, searches of all events."""
WAITING_MAX: Final = 16
"""Requests that have or wait for a reader; more are refused at once."""
WAIT_S: Final = 10.0
"""For a reader."""
LOOK_S: Final = 0.25
"""Who waits for a reader looks so often whether the browser is still there."""
QUESTION_S: Final = 10.0
"""For all questions of a request, unless it says otherwise."""
_OF_THE_QUESTION: Final = frozenset(
    {Code.INVALID, Code.NOT_FOUND, Code.EXHAUSTED, Code.DENIED, Code.UNSUPPORTED}
)
"""Errors after which a reader still serves."""
_INVALIDATED: Final = "invalidated"
"""In DuckDB's message about an instance that answers nothing any more."""


class Ticket:
    """A request's hold on a reader; any thread may give it up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: Queries | None = None
        self._gone = ""

    def cancel(self, why: str) -> None:
        """Ends the request's questions, now or as soon as it has a reader."""
        with self._lock:
            self._gone = self._gone or why
            if self._reader is not None:
                self._reader.interrupt()

    @property
    def cancelled(self) -> str:
        """Why it was given up; empty if it was not."""
        return self._gone

    def hold(self, reader: Queries | None) -> None:
        """From now on a cancel ends the questions of this reader, and of no other. The request's thread."""
        with self._lock:
            if reader is not None:
                reader.allow()  # what was interrupted before was another request's
                if self._gone:
                    reader.interrupt()
            self._reader = reader


class Pool:
    """A fixed number of readers.

    Args:
        open_queries: opens one.
        size: how many.
    """

    def __init__(self, open_queries: Callable[[], Queries], size: int = READERS) -> None:
        self._open = open_queries
        self._free: queue.LifoQueue[Queries | None] = queue.LifoQueue()
        self._places = threading.BoundedSemaphore(WAITING_MAX)
        self._long = threading.BoundedSemaphore(LONG_MAX)
        self._used: set[Queries] = set()
        self._lock = threading.Lock()
        self._closed = False
        first = open_queries()  # its errors are those of the target: at once
        for _ in range(size - 1):
            self._free.put(None)  # opened when it is needed
        self._free.put(first)

    @contextmanager
    def reader(self, ticket: Ticket, *, limit_s: float = QUESTION_S) -> Iterator[Queries]:
        """A reader for this request alone.

        Raises:
            RankmemError: EXHAUSTED where too many wait, or the request took longer than ``limit_s``;
                UNAVAILABLE where it was given up.
        """
        if not self._places.acquire(blocking=False):
            raise busy()
        try:
            with self._in_turn(ticket, limit_s), self._taken(ticket) as reader, _limited(ticket, limit_s):
                ticket.hold(reader)
                try:
                    if ticket.cancelled:
                        raise _given_up(ticket)
                    with one_answer(reader):
                        yield reader
                except RankmemError as exc:
                    if ticket.cancelled:
                        raise _given_up(ticket) from exc
                    raise
                finally:
                    ticket.hold(None)
        finally:
            self._places.release()

    @contextmanager
    def _in_turn(self, ticket: Ticket, limit_s: float) -> Iterator[None]:
        """Long questions leave readers to the others, and wait for each other as long as one may take."""
        if limit_s <= QUESTION_S:
            yield
            return
        ends_s = time.monotonic() + limit_s
        while not self._long.acquire(timeout=LOOK_S):
            if ticket.cancelled:
                raise _given_up(ticket)
            if time.monotonic() > ends_s:
                raise busy()
        try:
            yield
        finally:
            self._long.release()

    def close(self) -> None:
        """Ends all questions; closes the readers, those in use by who uses them. Idempotent."""
        with self._lock:
            self._closed = True
            for used in self._used:
                used.interrupt()
        while True:
            try:
                reader = self._free.get_nowait()
            except queue.Empty:
                return
            if reader is not None:
                reader.close()

    @contextmanager
    def _taken(self, ticket: Ticket) -> Iterator[Queries]:
        reader = self._wait(ticket)
        serves = False
        try:
            if reader is None:
                reader = self._open()
            with self._lock:
                self._used.add(reader)
                closed = self._closed
            if closed:
                raise RankmemError(Code.UNAVAILABLE, "the page is ending", "start it again: rankmem page")
            yield reader
            serves = True
        except RankmemError as exc:
            serves = bool(ticket.cancelled) or (
                exc.code in _OF_THE_QUESTION and _INVALIDATED not in exc.message
            )
            raise
        finally:
            with self._lock:
                if reader is not None:
                    self._used.discard(reader)
                serves = serves and not self._closed
            if reader is not None and not serves:
                reader.close()
            self._free.put(reader if serves else None)

    def _wait(self, ticket: Ticket) -> Queries | None:
        ends_s = time.monotonic() + WAIT_S
        while (left_s := ends_s - time.monotonic()) > 0:
            try:
                return self._free.get(timeout=min(left_s, LOOK_S))
            except queue.Empty:
                if ticket.cancelled:
                    raise _given_up(ticket) from None
        raise busy()


@contextmanager
def _limited(ticket: Ticket, limit_s: float) -> Iterator[None]:
    timer = threading.Timer(limit_s, ticket.cancel, args=(f"took longer than {limit_s:g} s",))
    timer.name = "rankmem-page-limit"
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def busy() -> RankmemError:
    """The refusal of who would wait for too long."""
    return RankmemError(Code.EXHAUSTED, "the page is busy", "ask again in a moment")


def _given_up(ticket: Ticket) -> RankmemError:
    if ticket.cancelled.startswith("took"):
        return RankmemError(
            Code.EXHAUSTED,
            f"the answer {ticket.cancelled}",
            "choose a shorter range, or ask with rankmem sql",
        )
    return RankmemError(Code.UNAVAILABLE, f"the question was cancelled: {ticket.cancelled}", "ask again")
