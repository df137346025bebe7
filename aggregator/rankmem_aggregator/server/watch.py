"""The aggregator's own health check: whether the writer is alive, room on the disk, memory, file sizes.

Stage: beside ingest, in a thread of its own (``rankmem-watch``), once a second; it costs a few system calls.
In: store and writer; out: a :class:`Condition`, and a callback whenever the aggregator becomes able or unable
to store. It changes nothing itself and never touches the database's connection.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.ingest.batch_writer import BatchWriter
from rankmem_aggregator.machine import resident_bytes
from rankmem_aggregator.store.disk import DiskLowError
from rankmem_aggregator.store.served import ServedStore

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The condition of an aggregator."""

    reason: str = ""
    """Why it cannot store now; empty: it can."""
    disk_free_bytes: int = 0
    """Beside the database, for this user."""
    database_bytes: int = 0
    """Size of the file."""
    log_bytes: int = 0
    """Size of its write-ahead log."""
    rss_bytes: int = 0
    """Resident memory of this process."""

    @property
    def is_serving(self) -> bool:
        """Whether batches can be stored."""
        return not self.reason


class Watch:
    """Looks once a second; callbacks run in its thread.

    Args:
        store, writer: what is watched.
        changed: called with the condition at the first look and whenever ``is_serving`` changes.
        looked: called with the condition after each look.
        died: called with the exception that ended the thread, which should not happen.
    """

    def __init__(
        self,
        store: ServedStore,
        writer: BatchWriter,
        changed: Callable[[Condition], None],
        looked: Callable[[Condition], None] = lambda condition: None,
        died: Callable[[BaseException], None] = lambda exc: None,
    ) -> None:
        self.condition = Condition()
        """As of the last look."""
        self._store = store
        self._writer = writer
        self._changed = changed
        self._looked = looked
        self._died = died
        self._stop = threading.Event()
        self._serving: bool | None = None
        self._thread = threading.Thread(target=self._run, name="rankmem-watch", daemon=True)

    def start(self) -> None:
        """Looks once, then starts the thread."""
        self.look()
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Idempotent; any thread but its own."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> Condition:
        """Looks now."""
        condition = Condition(
            reason=self._reason(),
            disk_free_bytes=self._store.disk.free_bytes(),
            database_bytes=self._store.disk.file_bytes(),
            log_bytes=self._store.disk.log_bytes(),
            rss_bytes=resident_bytes(),
        )
        self.condition = condition
        if condition.is_serving is not self._serving:
            if self._serving is not None or not condition.is_serving:
                logger.warning("%s", condition.reason or "batches are stored again")
            self._serving = condition.is_serving
            self._changed(condition)
        self._looked(condition)
        return condition

    def _reason(self) -> str:
        if not self._writer.is_alive:
            return "the writer has ended"
        stalled = self._writer.stalled
        if isinstance(stalled, DiskLowError):
            return f"batches wait for disk space: {stalled}"
        if stalled is not None:
            return f"batches wait: {stalled}"
        if self._store.instance.is_invalidated:
            return "the database is being reopened"
        try:
            self._store.disk.check_room()
        except DiskLowError as exc:
            return f"the disk is full: {exc}"
        return ""

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                self.look()
            except OSError as exc:  # the folder is gone, or its file system
                logger.debug("cannot look: %s", exc)
            except BaseException as exc:  # without its watch the service stops
                logger.error("the watch stopped: %s", exc, exc_info=exc)
                self._died(exc)
                return


def release_memory() -> None:
    """Returns to the system what allocators keep for later: it counts against the memory budget.

    Some milliseconds; only where the C library has ``malloc_trim`` (glibc).
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
