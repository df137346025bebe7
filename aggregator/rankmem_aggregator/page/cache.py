"""Answers kept in memory, each computed once for all who ask at a time: so fifty viewers cost one.

Stage: page, in uvicorn's event loop; computing is done in threads. A key holds all that an answer depends
on, the session's watermark among it: so an entry never goes stale, it is only no longer asked for.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rankmem_aggregator.page.pool import WAIT_S, WAITING_MAX, Ticket, busy

T = TypeVar("T")
Key = tuple[str, ...]

CACHE_BYTES: Final = 64 << 20
GZIP_LEAST_BYTES: Final = 2000
QUEUE_MAX: Final = 256
"""Computations that wait for a thread; more are refused at once."""
THREADS_NAME: Final = "rankmem-rpc-page"
"""Of the threads; the prefix is that of threads that a process does not wait for when it ends."""


@dataclass(frozen=True, slots=True)
class Body:
    """An answer's bytes, compressed once for all who take it so."""

    data: bytes
    is_packed: bool
    tag: str
    """Of the bytes before they were compressed."""

    @classmethod
    def of(cls, data: bytes, *, level: int = 1, least_bytes: int = GZIP_LEAST_BYTES) -> Body:
        """Compressed where that is worth it. In a thread: 16 MiB take 0.2 s at gzip's level 1."""
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        if len(data) < least_bytes:
            return cls(data, False, tag)
        return cls(gzip.compress(data, level, mtime=0), True, tag)

    def plain(self) -> bytes:
        """The bytes for who takes them as they are."""
        return gzip.decompress(self.data) if self.is_packed else self.data


class AnswerCache:
    """The answers used last, up to a number of bytes."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Key, Body] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Body | None:
        """The answer of this key, if it is kept."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: Key, body: Body) -> None:
        """Keeps an answer; the longest unused ones make room."""
        if len(body.data) > self._most_bytes // 4 or key in self._kept:
            return
        self._kept[key] = body
        self._bytes += len(body.data)
        while self._bytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.data)


@dataclass(slots=True)
class _Under(Generic[T]):
    """A computation under way."""

    task: asyncio.Task[T]
    ticket: Ticket
    waiting: int = 0


class Computing:
    """Computations in threads, each once for all who ask at a time; given up when all of them have gone."""

    def __init__(self) -> None:
        self._under: dict[Key, _Under[Any]] = {}
        self._threads = ThreadPoolExecutor(WAITING_MAX, thread_name_prefix=THREADS_NAME)
        self._places = asyncio.Semaphore(WAITING_MAX)
        self._queued = 0

    async def once(self, key: Key, compute: Callable[[Ticket], T]) -> T:
        """What ``compute`` returns, here or for another who asks the same now; raises what it raises.

        Raises:
            RankmemError: EXHAUSTED where too many wait, or this one has waited for too long.
        """
        under = self._under.get(key)
        if under is None or under.ticket.cancelled or under.task.done():
            ticket = Ticket()
            task = asyncio.ensure_future(self._in_thread(compute, ticket))
            under = self._under[key] = _Under(task, ticket)
            task.add_done_callback(lambda done: self._over(key, done))
        under.waiting += 1
        try:
            return await asyncio.shield(under.task)
        finally:
            under.waiting -= 1
            if not under.waiting and not under.task.done():
                under.ticket.cancel("the browser has gone")

    def close(self) -> None:
        """Ends the threads, each when what it computes is done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, compute: Callable[[Ticket], T], ticket: Ticket) -> T:
        if self._queued >= QUEUE_MAX:
            raise busy()
        self._queued += 1
        try:
            await asyncio.wait_for(self._places.acquire(), WAIT_S)
        except TimeoutError:
            raise busy() from None
        finally:
            self._queued -= 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, compute, ticket)
        finally:
            self._places.release()

    def _over(self, key: Key, done: asyncio.Task[Any]) -> None:
        under = self._under.get(key)
        if under is not None and under.task is done:
            del self._under[key]
        if not done.cancelled():
            done.exception()  # seen, also where nobody waits for it any more
