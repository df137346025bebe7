"""The readers of a page: a few ``Queries``, each used by one request at a time.

Stage: page, shared by all request threads. A request waits for a reader for a bounded time, and its
question is interrupted when it has taken too long or its browser has gone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError

READERS: Final = 4
"""At once: DuckDB uses all cores for each question."""
WAITING_MAX: Final = 16
"""Requests that have or wait for a reader; more are refused at once."""
WAIT_S: Final = 10.0
"""For a reader."""
QUESTION_S: Final = 10.0
"""For all questions of a request, unless it says otherwise."""


class Ticket:
    """A request's hold on a reader; any thread may give it up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: Queries | None = None
        self._gone = ""

    def cancel(self, why: str) -> None:
        """Ends the request's question, now or as soon as it has a reader."""
        with self._lock:
            self._gone = self._gone or why
            if self._reader is not None:
                self._reader.interrupt()

    @property
    def cancelled(self) -> str:
        """Why it was given up; empty if it was not."""
        return self._gone

    def _hold(self, reader: Queries | None) -> None:
        with self._lock:
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
        self._all: list[Queries] = [open_queries()]  # its errors are those of the target: at once
        self._lock = threading.Lock()
        for _ in range(size - 1):
            self._free.put(None)  # opened when it is needed
        self._free.put(self._all[0])

    @contextmanager
    def reader(self, ticket: Ticket, *, limit_s: float = QUESTION_S) -> Iterator[Queries]:
        """A reader for this request alone.

        Raises:
            RankmemError: EXHAUSTED where too many wait, or the request took longer than ``limit_s``;
                UNAVAILABLE where it was given up.
        """
        if not self._places.acquire(blocking=False):
            raise _busy()
        try:
            reader = self._take()
            timer = threading.Timer(limit_s, ticket.cancel, args=(f"took longer than {limit_s:g} s",))
            timer.daemon = True
            timer.start()
            ticket._hold(reader)
            try:
                if ticket.cancelled:
                    raise _given_up(ticket)
                yield reader
            except RankmemError as exc:
                if ticket.cancelled:
                    raise _given_up(ticket) from exc
                raise
            finally:
                ticket._hold(None)
                timer.cancel()
                self._free.put(reader)
        finally:
            self._places.release()

    def close(self) -> None:
        """Closes all readers; questions in them fail."""
        with self._lock:
            for reader in self._all:
                reader.close()

    def _take(self) -> Queries:
        ends_s = time.monotonic() + WAIT_S
        try:
            reader = self._free.get(timeout=max(0.0, ends_s - time.monotonic()))
        except queue.Empty:
            raise _busy() from None
        if reader is not None:
            return reader
        try:
            reader = self._open()
        except BaseException:
            self._free.put(None)
            raise
        with self._lock:
            self._all.append(reader)
        return reader


def _busy() -> RankmemError:
    return RankmemError(
        Code.EXHAUSTED, "the page answers as many questions as it can", "ask again in a moment"
    )


def _given_up(ticket: Ticket) -> RankmemError:
    if ticket.cancelled.startswith("took"):
        return RankmemError(
            Code.EXHAUSTED,
            f"the answer {ticket.cancelled}",
            "choose a shorter range, or ask with rankmem sql",
        )
    return RankmemError(Code.UNAVAILABLE, f"the question was cancelled: {ticket.cancelled}", "ask again")
