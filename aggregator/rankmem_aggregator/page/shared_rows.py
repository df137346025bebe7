"""Rows that several answers about a session begin with, found once for all of them.

Stage: page, in the threads of requests. A key holds the session's watermark: an entry never goes stale.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa

Key = tuple[str, ...]


class SharedRows:
    """The tables asked for last; who asks for one that is being found waits for it.

    Args:
        most: tables kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, pa.Table] = OrderedDict()
        self._finding: dict[Key, threading.Lock] = {}

    def get(self, key: Key, find: Callable[[], pa.Table]) -> pa.Table:
        """The table of this key. A failure is that of who looked; the next one looks again."""
        with self._lock:
            turn = self._finding.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                found = self._kept.get(key)
            if found is None:
                found = find()
            with self._lock:
                self._kept[key] = found
                self._kept.move_to_end(key)
                self._finding.pop(key, None)
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        return found
