"""Answers kept in memory, so that fifty viewers cost one.

Stage: page, shared by all request threads. A key holds all that an answer depends on, the session's watermark
among it: so an entry never goes stale, it is only no longer asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

CACHE_BYTES: Final = 64 << 20
Key = tuple[str, ...]


class AnswerCache:
    """The answers used last, up to a number of bytes; each computed once for all who ask at a time."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, bytes] = OrderedDict()
        self._bytes = 0
        self._computing: dict[Key, Future[bytes]] = {}

    def get(self, key: Key, compute: Callable[[], bytes]) -> bytes:
        """The answer of this key, from memory, from a request that computes it now, or computed here.

        A failure is that of the one who computed; those who waited for it compute for themselves.
        """
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found
            other = self._computing.get(key)
            if other is None:
                mine = self._computing[key] = Future()
        if other is not None:
            failed = other.exception() is not None  # waits; perhaps its browser went
            return compute() if failed else other.result()
        try:
            body = compute()
        except BaseException as exc:
            with self._lock:
                del self._computing[key]
            mine.set_exception(exc)
            raise
        with self._lock:
            del self._computing[key]
            self._keep(key, body)
        mine.set_result(body)
        return body

    def _keep(self, key: Key, body: bytes) -> None:
        if len(body) > self._most_bytes // 4:
            return
        self._kept[key] = body
        self._bytes += len(body)
        while self._bytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest)
