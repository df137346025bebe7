"""Which batch may follow, and who may send it: each spool's records are stored once and without holes.

Stage: ingest, in the writer's thread (:meth:`SpoolProgress.stored` also in those of ingest calls). In: a
batch's range; out: store it, acknowledge it as known, or refuse it. What is tentative becomes stored only
after the commit that carries it, and is forgotten after a rollback. The rules are in the README.md beside
collector.proto.
"""

from __future__ import annotations

import enum
import hmac
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
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


class Opening:
    """A spool as one ingest call opened it; the first refused batch of it closes it.

    Two threads refuse: the call's, which reads, and the writer's, which gets what was read before. The writer
    looks at its own mark alone, so that a refusal by the call does not affect the batches before it.
    """

    __slots__ = ("_is_closed", "_is_refused", "spool")

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._is_closed = False
        self._is_refused = False

    def close(self) -> None:
        """The call refused a batch: no later one is taken."""
        self._is_closed = True

    def refuse(self) -> None:
        """The writer refused a batch: neither those that wait behind it nor later ones are taken."""
        self._is_closed = self._is_refused = True

    def check_reading(self) -> None:
        """Raises CONFLICT where the call may take no more batches."""
        if self._is_closed:
            raise self.error()

    def check_writing(self) -> None:
        """Raises CONFLICT where the writer may take no more batches."""
        if self._is_refused:
            raise self.error()

    def error(self) -> RankmemError:
        """The error for a batch that comes after a refusal."""
        return RankmemError(
            Code.CONFLICT,
            f"a batch of spool {self.spool.spool_id} was refused, nothing after it is accepted",
            "open the spool again; its state has the last position stored",
        )


class SpoolProgress:
    """The progress of every spool of the database, and that of the group being built."""

    def __init__(self, stored: Iterable[Progress]) -> None:
        self._lock = threading.Lock()
        self._stored = {progress.spool.spool_id: progress for progress in stored}
        self._tentative: dict[str, Progress] = {}
        self._tombstones: dict[str, Progress] = {}
        self._deleted_sessions: set[str] = set()

    def stored(self, spool: Spool) -> int:
        """Last sequence committed of this spool, -1 for none. Any thread.

        Raises:
            RankmemError: INVALID if the spool was stored as another session's or rank's, DENIED if another
                secret opens it, NOT_FOUND if its session was deleted and it would send more.
        """
        with self._lock:
            progress = self._stored.get(spool.spool_id)
            is_deleted = spool.session_id in self._deleted_sessions
            tombstone = self._tombstones.get(spool.spool_id)
        if is_deleted:
            return _stored_before(spool, tombstone)
        if progress is None:
            return NOTHING_STORED
        _check_same(progress.spool, spool)
        return progress.last_sequence

    def learn(self, stored: Iterable[Progress]) -> None:
        """What others have stored since, or before. Any thread."""
        with self._lock:
            for progress in stored:
                known = self._stored.get(progress.spool.spool_id)
                if known is None or known.last_sequence < progress.last_sequence:
                    self._stored[progress.spool.spool_id] = progress

    def drop(self, spool_id: str) -> None:
        """What is tentative of a spool is not stored. Writer's thread."""
        self._tentative.pop(spool_id, None)

    def is_stored(self, batch: IncomingBatch) -> bool:
        """Whether all of a batch is committed. Any thread."""
        with self._lock:
            progress = self._stored.get(batch.spool.spool_id)
        return progress is not None and batch.sequence_last <= progress.last_sequence

    def set_tombstones(self, tombstones: Iterable[Progress]) -> None:
        """Replaces the known logs of deleted sessions."""
        found = {progress.spool.spool_id: progress for progress in tombstones}
        with self._lock:
            self._tombstones = found
            self._deleted_sessions = {progress.spool.session_id for progress in found.values()}

    def add_tombstones(self, session_id: str) -> None:
        """The session is deleted: nothing more of it is taken."""
        with self._lock:
            gone = {
                name: progress
                for name, progress in self._stored.items()
                if progress.spool.session_id == session_id
            }
            self._stored = {name: self._stored[name] for name in self._stored.keys() - gone.keys()}
            self._tombstones |= gone
            self._deleted_sessions.add(session_id)

    def judge(self, batch: IncomingBatch) -> Verdict:
        """Whether the batch follows; if so it counts as the spool's last from now on.

        Raises:
            RankmemError: CONFLICT for a hole or an overlap, INVALID for another session's spool, DENIED for
                another's secret.
        """
        stored = self.stored(batch.spool)
        tentative = self._tentative.get(batch.spool.spool_id)
        if tentative is not None:
            _check_same(tentative.spool, batch.spool)
        last = stored if tentative is None else tentative.last_sequence
        if batch.sequence_last <= last:
            return Verdict.KNOWN
        # Also at the beginning: for positions that another database has, a shipper sends a gap row.
        if batch.sequence_first != last + 1:
            raise RankmemError(
                Code.CONFLICT,
                f"batch [{batch.sequence_first}, {batch.sequence_last}] of spool {batch.spool.spool_id} "
                f"does not follow {last}",
                f"send from {last + 1} on; the reply to OpenSpool has the last one stored",
            )
        self._tentative[batch.spool.spool_id] = Progress(
            spool=batch.spool, last_sequence=batch.sequence_last, final=batch.final
        )
        return Verdict.STORE

    def tentative(self) -> list[Progress]:
        """The progress that this group makes: one entry a spool."""
        return list(self._tentative.values())

    def commit(self) -> None:
        """What was tentative is stored."""
        with self._lock:
            self._stored |= self._tentative
        self._tentative.clear()

    def rollback(self) -> None:
        """What was tentative is not stored."""
        self._tentative.clear()


def _check_same(known: Spool, spool: Spool) -> None:
    """Checks that an opened spool is the one known under its id, and that the shipper may open it.

    Raises:
        RankmemError: INVALID, DENIED.
    """
    if known != spool:
        raise RankmemError(
            Code.INVALID,
            f"spool {spool.spool_id} is known as session {known.session_id}, attempt {known.attempt}, "
            f"rank {known.rank}",
            "open it with these values; spool ids are never used twice",
        )
    # One that was stored without a secret takes the first that is given: only older versions had none.
    if known.secret_hash and not hmac.compare_digest(known.secret_hash, spool.secret_hash):
        raise RankmemError(
            Code.DENIED,
            f"spool {spool.spool_id} was opened with {'another secret' if spool.secret_hash else 'no secret'}"
            " instead of the one it began with",
            "ship the folder that the rank itself wrote: its meta.json has the secret",
        )


def _stored_before(spool: Spool, tombstone: Progress | None) -> int:
    """The last sequence of a log that was stored to its end, so that its shipper is done with it."""
    if tombstone is not None and tombstone.spool == spool and tombstone.final:
        return tombstone.last_sequence
    raise session_deleted(spool.session_id)


def session_deleted(session_id: str) -> RankmemError:
    """The error of a log whose session was pruned."""
    return RankmemError(
        Code.NOT_FOUND,
        f"session {session_id} was deleted here, nothing more of it is accepted",
        "ship it to another aggregator: rankmem ship --aggregator HOST:PORT DIR",
    )
