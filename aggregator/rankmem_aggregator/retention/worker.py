"""Enforces the limits on what is kept, during ingest: checks once a minute, deletes a step at a time.

Stage: beside ingest, in the writer's thread, between two groups. In: the limits and the stored sessions; out:
whole sessions deleted, oldest first, and their blocks free for later rows. A database shrinks on disk only
where free blocks are at the file's end (DuckDB 2.0); otherwise it stops growing. ``rankmem prune`` on a file
that is not in use returns the space (see ``compact``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import duckdb

from rankmem_aggregator.retention.delete import Pruner
from rankmem_aggregator.retention.limits import Limits, StoredSession, sessions_due
from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store.recovery import TRANSIENT
from rankmem_aggregator.store.store import Store

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 60.0
"""Between two checks while nothing is to be deleted."""
WARN_EVERY_S: Final = 3600.0


def stored_sessions(store: Store) -> list[StoredSession]:
    """The sessions, oldest first."""
    return [
        StoredSession(session_id=row["session_id"], last_ns=row["last_ns"], final=row["final"])
        for row in store.read(statement_text("prune", "sessions")).to_pylist()
    ]


class RetentionWorker:
    """Keeps a database within its limits.

    Args:
        store: the open database.
        limits: what is kept.
        deleted: called with each session as soon as its tombstones are stored.
        cleaned: called when stacks and tombstones have changed.
        clock_ns: the wall clock.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits,
        *,
        deleted: Callable[[str], None] = lambda session_id: None,
        cleaned: Callable[[], None] = lambda: None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.num_pruned = 0
        """Sessions deleted since this was made."""
        self._store = store
        self._limits = limits
        self._deleted = deleted
        self._cleaned = cleaned
        self._clock_ns = clock_ns
        self._pruner = Pruner(store, clock_ns)
        self._look_s = float("-inf")
        self._warned_s = float("-inf")
        self._unclean = False
        self._unpacked = False
        self._is_on = True

    @property
    def is_due(self) -> bool:
        """Whether :meth:`advance` has something to do or to check. Any thread."""
        if not self._is_on:
            return False
        looks = self._limits.are_set and time.monotonic() - self._look_s >= LOOK_EVERY_S
        return looks or self._pruner.is_busy or self._unclean

    def now_ns(self) -> int:
        """The current time by the clock for sessions."""
        return self._clock_ns()

    def advance(self) -> bool:
        """The next step; False if nothing is to be done now.

        A failure of the database is logged once and ends deletion in this process.
        """
        if not self.is_due:
            return False
        try:
            return self._step()
        except TRANSIENT as exc:
            logger.debug("nothing is deleted now: %s", exc)
        except duckdb.Error as exc:
            self._is_on = False
            logger.warning("no more sessions are deleted, the database may grow beyond its limits: %s", exc)
        self._look_s = time.monotonic()
        return False

    def _step(self) -> bool:
        if self._pruner.is_busy:
            self._pruner.step()
            self._unclean = self._unpacked = True
            return True
        due = self._due() if self._limits.are_set else []
        if due:
            self.begin(due[0].session_id)
            return True
        self._look_s = time.monotonic()
        if self._unclean:
            self._clean()
        return False

    def begin(self, session_id: str) -> None:
        """Begins to delete a session; :meth:`advance` does the rest. Writer's thread."""
        self._pruner.tombstone(session_id)
        self._deleted(session_id)
        self.num_pruned += 1
        logger.info("deleting session %s", session_id)

    def _due(self) -> list[StoredSession]:
        if self._unpacked and self._limits.size_bytes:
            self._unpacked = not self._store.checkpoint(0)
        stored = stored_sessions(self._store)
        # Deleted rows count until a checkpoint: no other session is deleted for their bytes.
        used_bytes = 0 if self._unpacked else self._store.used_bytes()
        due = sessions_due(stored, self._limits, now_ns=self._clock_ns(), used_bytes=used_bytes)
        if not due and 0 < self._limits.size_bytes < used_bytes:
            self._warn(used_bytes)
        return due

    def _clean(self) -> None:
        self._pruner.clean()
        self._cleaned()
        self._unclean = False
        self._unpacked = not self._store.checkpoint(0)

    def _warn(self, used_bytes: int) -> None:
        if time.monotonic() - self._warned_s > WARN_EVERY_S:
            self._warned_s = time.monotonic()
            logger.warning(
                "the database uses %d bytes, more than the %d to keep, and all its sessions are running",
                used_bytes,
                self._limits.size_bytes,
            )
