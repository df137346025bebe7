"""Watches the process's memory while clients' statements run, and has them stopped above a limit.

Stage: query. DuckDB's memory limit counts what its buffers hold, not what an expression builds in one vector
(``functions`` shows how much that can be). In: a limit; out: a call of ``over``. One thread
(``rankmem-memory``) that lives only while a statement does. Linux: resident pages of /proc/self/statm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from rankmem_aggregator.config import BESIDE_BYTES
from rankmem_aggregator.machine import resident_bytes

LOOK_EVERY_S: Final = 0.02
"""A list that a core fills grows by some 10 MiB in this time, an expression by 40."""
GROWTH_BYTES: Final = 1 << 30
"""What statements may add where the process is over its limit already: freed pages go back late."""


class MemoryWatch:
    """Watches from :meth:`look_while` on until its condition ends.

    Args:
        memory_limit_bytes: what DuckDB itself is limited to.
        is_over_limit: whether statements hold more than they may of it.
        over: stops the statements; called from the watching thread, again and again while it is over.
    """

    def __init__(
        self, memory_limit_bytes: int, is_over_limit: Callable[[], bool], over: Callable[[], None]
    ) -> None:
        self._is_over_limit = is_over_limit
        self._limit_bytes = memory_limit_bytes + BESIDE_BYTES
        self._over = over
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()

    def look_while(self, running: Callable[[], bool]) -> None:
        """Starts to watch, unless it watches already. Any thread."""
        with self._lock:
            self._idle.clear()
            if self._thread is None:
                thread = threading.Thread(
                    target=self._watch, args=(running,), name="rankmem-memory", daemon=True
                )
                thread.start()  # it waits for the lock; where it cannot be started the next statement tries
                self._thread = thread

    def idle(self) -> None:
        """Its condition has ended: the thread ends now, not after its pause. Any thread."""
        self._idle.set()

    def _watch(self, running: Callable[[], bool]) -> None:
        limit_bytes = max(self._limit_bytes, resident_bytes() + GROWTH_BYTES)
        while True:
            with self._lock:
                if not running():
                    self._thread = None
                    return
            if resident_bytes() > limit_bytes or self._is_over_limit():
                self._over()
            self._idle.wait(LOOK_EVERY_S)
