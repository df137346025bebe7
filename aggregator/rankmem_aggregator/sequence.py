"""Which batch may follow: each spool's records are stored once and without holes.

Stage: ingest, in the writer's thread (reads of :meth:`SpoolProgress.stored` in the streams'). In: a batch's
range; out: store it, acknowledge it as known, or refuse it. What is tentative becomes stored only after
the commit that carries it, and is forgotten after a rollback.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.batch import IncomingBatch, Spool
from rankmem_protos.errors import Code, RankmemError

NOTHING_STORED: Final = -1


class Verdict(enum.Enum):
    """What to do with a batch."""

    STORE = enum.auto()
    KNOWN = enum.auto()
    """All of it is stored, or will be by this very group: acknowledge, do not store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a spool is stored."""

    spool: Spool
    last_sequence: int
    final: bool


class SpoolProgress:
    """The progress of every spool of the database, and that of the group being built."""

    def __init__(self, stored: Iterable[Progress]) -> None:
        self._lock = threading.Lock()
        self._stored = {progress.spool.spool_id: progress for progress in stored}
        self._tentative: dict[str, Progress] = {}
        self._pruned: dict[str, Progress] = {}
        self._pruned_sessions: set[str] = set()

    def stored(self, spool: Spool) -> int:
        """Last sequence committed of this spool, -1 for none. Any thread.

        Raises:
            RankmemError: INVALID if the spool was stored as another session's or rank's, NOT_FOUND if its
                session was deleted and more of it would come.
        """
        with self._lock:
            progress = self._stored.get(spool.spool_id)
            is_pruned = spool.session_id in self._pruned_sessions
            pruned = self._pruned.get(spool.spool_id)
        if is_pruned:
            return _stored_before(spool, pruned)
        if progress is None:
            return NOTHING_STORED
        if progress.spool != spool:
            raise RankmemError(
                Code.INVALID,
                f"spool {spool.spool_id} is known as session {progress.spool.session_id}, attempt "
                f"{progress.spool.attempt}, rank {progress.spool.rank}",
                "open it as what it is; spool ids are never used twice",
            )
        return progress.last_sequence

    def remember(self, pruned: Iterable[Progress]) -> None:
        """These logs are all those that are known of sessions that were deleted."""
        found = {progress.spool.spool_id: progress for progress in pruned}
        with self._lock:
            self._pruned = found
            self._pruned_sessions = {progress.spool.session_id for progress in found.values()}

    def bury(self, session_id: str) -> None:
        """The session is deleted: nothing more of it is taken."""
        with self._lock:
            gone = {
                name: progress
                for name, progress in self._stored.items()
                if progress.spool.session_id == session_id
            }
            self._stored = {name: self._stored[name] for name in self._stored.keys() - gone.keys()}
            self._pruned |= gone
            self._pruned_sessions.add(session_id)

    def judge(self, batch: IncomingBatch) -> Verdict:
        """Whether the batch follows; if so it counts as the spool's last from now on.

        Raises:
            RankmemError: CONFLICT for a hole or an overlap, INVALID for another session's spool.
        """
        stored = self.stored(batch.spool)
        tentative = self._tentative.get(batch.spool.spool_id)
        last = stored if tentative is None else tentative.last_sequence
        if batch.sequence_last <= last:
            return Verdict.KNOWN
        # A spool that another database has the beginning of may start anywhere here.
        if batch.sequence_first != last + 1 and last != NOTHING_STORED:
            raise RankmemError(
                Code.CONFLICT,
                f"batch [{batch.sequence_first}, {batch.sequence_last}] of spool {batch.spool.spool_id} "
                f"does not follow {last}",
                f"send from {last + 1} on; OpenSpool tells the last one stored",
            )
        self._tentative[batch.spool.spool_id] = Progress(
            spool=batch.spool, last_sequence=batch.sequence_last, final=batch.final
        )
        return Verdict.STORE

    def tentative(self) -> list[Progress]:
        """What this group moves: one entry a spool."""
        return list(self._tentative.values())

    def commit(self) -> None:
        """What was tentative is stored."""
        with self._lock:
            self._stored |= self._tentative
        self._tentative.clear()

    def rollback(self) -> None:
        """What was tentative is not stored."""
        self._tentative.clear()


def _stored_before(spool: Spool, pruned: Progress | None) -> int:
    """Of a log that was stored to its end its last sequence, so that its shipper is done with it."""
    if pruned is not None and pruned.spool == spool and pruned.final:
        return pruned.last_sequence
    raise RankmemError(
        Code.NOT_FOUND,
        f"session {spool.session_id} was deleted here, nothing more of it is taken",
        "ship it to another aggregator: rankmem ship --aggregator HOST:PORT DIR",
    )
