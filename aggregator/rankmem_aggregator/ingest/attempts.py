"""The attempt of its session under which a spool is stored: no two spools are the same rank of one attempt.

Stage: ingest. In: spools as they are opened; out: the attempt of each, and the rows of ``spool_start`` that
keep it. Each host counts attempts by itself, and a session's id may be used again (``--session exp-41``
twice), so the attempt that a spool declares is a proposal. It holds unless another spool is that rank of that
attempt, or belongs to another start of the workers; then the spool becomes part of another attempt, the same
one for all ranks of its start. Rows of two processes never meet under one (session, attempt, rank). An
imported recording is refused instead: its user chose the rank.

A start is identified by the text that its ranks share (``OpenSpool.start``). A later run may have the same
text, so a spool joins a start only where its rank is free, and only if its launch is known there or the start
was not over, by its rows, before the spool began.

Opening a spool reserves its rank, in the threads of ingest calls; :meth:`Starts.check`, in the writer's,
decides, and what it accepts is stored with the batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

import pyarrow as pa

from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.store.schema import SPOOL_START
from rankmem_protos.bounds import RANKS_MAX
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

IMPORTED: Final = "-import-"
"""Part of the id of a spool that is another tool's recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStart:
    """A spool of the database."""

    spool: Spool
    final: bool
    updated_ns: int


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """The known facts of an attempt of a session."""

    declared: int
    starts: set[str]
    """Usually one; more where a rank was published before its process group named the start."""
    launches: set[str] = field(default_factory=set)
    ranks: dict[int, str] = field(default_factory=dict)
    """Rank → its spool."""
    unfinished: set[str] = field(default_factory=set)
    """Spools that may send more."""
    last_ns: int = 0
    """When rows of it were stored last, on the aggregator's clock."""

    def takes(self, spool: Spool) -> bool:
        """Whether the spool may be a rank of this attempt."""
        if self.ranks.get(spool.rank, spool.spool_id) != spool.spool_id:
            return False
        is_start, is_launch = _start_of(spool) in self.starts, spool.launch in self.launches
        if is_launch and (is_start or _declared(spool) == self.declared):
            return True  # a host counts the attempts of what it launched
        return is_start and not self._was_over(spool.started_ns)

    def _was_over(self, started_ns: int) -> bool:
        return bool(self.ranks) and not self.unfinished and 0 < self.last_ns < started_ns


class Starts:
    """The attempts of every session of a database.

    Args:
        stored: its spools.
        tombstones: spools of deleted sessions.
    """

    def __init__(self, stored: Iterable[StoredStart], tombstones: Iterable[Spool] = ()) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, dict[int, _Attempt]] = {}
        self._spools: dict[str, Spool] = {}
        """Each as it is stored, or will be."""
        self._tombstones: dict[str, Spool] = {}
        self.set_tombstones(tombstones)
        self._saved: set[str] = set()
        self._tentative: dict[str, tuple[Spool, bool]] = {}
        for one in stored:
            self._occupy(one.spool)
            self._note(one.spool, final=one.final, now_ns=one.updated_ns)

    def place(self, spool: Spool) -> Spool:
        """The spool as it will be stored; its rank is reserved for it. Any thread.

        Args:
            spool: as it was opened, with the attempt that it declares.

        Raises:
            RankmemError: INVALID for a spool that was opened as another attempt's, CONFLICT for a recording
                whose rank is taken by another spool.
        """
        with self._lock:
            tombstone = self._tombstones.get(spool.spool_id)
            if tombstone is not None:
                return replace(spool, attempt=tombstone.attempt, declared_attempt=spool.attempt)
            known = self._spools.get(spool.spool_id)
            if known is not None:
                return _as_known(spool, known)
            placed = self._placed(spool)
            self._occupy(placed)
        if placed.attempt != spool.attempt:
            logger.warning(
                "session %s: attempt %d is another start of the workers, rank %d (%s) becomes attempt %d",
                spool.session_id,
                spool.attempt,
                spool.rank,
                spool.spool_id,
                placed.attempt,
            )
        return placed

    def learn(self, stored: Iterable[StoredStart]) -> None:
        """What others have stored since: ranks reserved here for other spools are theirs. Any thread.

        A spool that loses its place is refused by :meth:`check`; opened again, it gets another attempt.
        """
        with self._lock:
            new = [one for one in stored if one.spool.spool_id not in self._saved]
            touched = {(one.spool.session_id, one.spool.attempt) for one in new}
            reserved = [
                spool
                for name, spool in self._spools.items()
                if name not in self._saved and (spool.session_id, spool.attempt) in touched
            ]
            for spool in reserved:
                self._vacate(spool)
            for one in new:
                self._occupy(one.spool)
                self._note(one.spool, final=one.final, now_ns=one.updated_ns)
            for spool in reserved:
                attempt = self._sessions[spool.session_id][spool.attempt]
                if spool.spool_id not in self._saved and attempt.takes(_as_opened(spool)):
                    self._occupy(spool)

    def drop(self, spool_id: str) -> None:
        """A spool's batches are not stored. Writer's thread."""
        with self._lock:
            self._tentative.pop(spool_id, None)

    def release(self, spools: Iterable[Spool]) -> None:
        """Their call has ended: those that sent nothing release their ranks. Any thread."""
        with self._lock:
            for spool in spools:
                if spool.spool_id not in self._saved and spool.spool_id not in self._tentative:
                    self._vacate(spool)

    def check(self, spool: Spool) -> None:
        """Accepts a spool that is about to be stored, if no other has its rank. Writer's thread.

        Raises:
            RankmemError: CONFLICT; opened again, the spool gets another attempt.
        """
        with self._lock:
            if spool.spool_id in self._saved:
                return  # an older version stored two spools as one rank: what it began is ended
            attempt = self._sessions.get(spool.session_id, {}).get(spool.attempt)
            owner = attempt.ranks.get(spool.rank) if attempt is not None else None
            if owner is None:
                is_its_own = self._placed(_as_opened(spool)).attempt == spool.attempt
            else:
                is_its_own = owner == spool.spool_id
            if not is_its_own:
                self._spools.pop(spool.spool_id, None)
                raise _taken(spool, owner, "open the spool again: it is stored as another attempt")

    def take(self, batch: IncomingBatch) -> None:
        """The batch becomes part of the group, with its spool's attempt. Writer's thread."""
        with self._lock:
            self._occupy(batch.spool)
            self._tentative[batch.spool.spool_id] = batch.spool, batch.final

    def rows(self) -> pa.Table:
        """Rows of spool_start for the spools of this group that have none. Writer's thread."""
        return pa.Table.from_pylist(
            [
                {
                    "spool_id": spool.spool_id,
                    "session_id": spool.session_id,
                    "attempt": spool.attempt,
                    "rank": spool.rank,
                    "declared_attempt": _declared(spool),
                    "start": spool.start,
                    "launch": spool.launch,
                }
                for spool, _ in self._tentative.values()
                if spool.spool_id not in self._saved
            ],
            schema=SPOOL_START.arrow_schema().remove_metadata(),
        )

    def commit(self) -> None:
        """The group is stored. Writer's thread."""
        now_ns = time.time_ns()
        with self._lock:
            for spool, final in self._tentative.values():
                self._note(spool, final=final, now_ns=now_ns)
            self._tentative.clear()

    def rollback(self) -> None:
        """The group is not stored; its spools keep their ranks. Writer's thread."""
        self._tentative.clear()

    def set_tombstones(self, tombstones: Iterable[Spool]) -> None:
        """Replaces the known spools of deleted sessions. Writer's thread."""
        found = {spool.spool_id: spool for spool in tombstones}
        with self._lock:
            self._tombstones = found

    def add_tombstones(self, session_id: str) -> None:
        """The session is deleted: its ranks are free, and its spools stay known."""
        with self._lock:
            self._sessions.pop(session_id, None)
            gone = {name: spool for name, spool in self._spools.items() if spool.session_id == session_id}
            self._tombstones |= gone
            self._saved -= gone.keys()
            self._spools = {name: spool for name, spool in self._spools.items() if name not in gone}

    def _placed(self, spool: Spool) -> Spool:
        attempts = self._sessions.get(spool.session_id, {})
        own = attempts.get(spool.attempt)
        if own is not None and IMPORTED in spool.spool_id and spool.rank in own.ranks:
            raise _taken(
                spool,
                own.ranks[spool.rank],
                "leave --session out, or distinguish the ranks with --rank-from",
            )
        fitting = [number for number, attempt in attempts.items() if attempt.takes(spool)]
        known = [number for number in fitting if spool.launch and spool.launch in attempts[number].launches]
        if known or fitting:
            number = max(known or fitting)
        elif own is None:
            number = spool.attempt
        else:
            number = max(attempts) + 1
            if number >= RANKS_MAX:
                number = next(free for free in count() if free not in attempts)
        return replace(spool, attempt=number, declared_attempt=spool.attempt)

    def _occupy(self, spool: Spool) -> None:
        attempts = self._sessions.setdefault(spool.session_id, {})
        attempt = attempts.setdefault(spool.attempt, _Attempt(declared=_declared(spool), starts=set()))
        attempt.starts.add(_start_of(spool))
        attempt.ranks.setdefault(spool.rank, spool.spool_id)
        attempt.unfinished.add(spool.spool_id)
        if spool.launch:
            attempt.launches.add(spool.launch)
        self._spools[spool.spool_id] = spool

    def _vacate(self, spool: Spool) -> None:
        self._spools.pop(spool.spool_id, None)
        attempts = self._sessions.get(spool.session_id, {})
        attempt = attempts.get(spool.attempt)
        if attempt is None or attempt.ranks.get(spool.rank) != spool.spool_id:
            return
        del attempt.ranks[spool.rank]
        attempt.unfinished.discard(spool.spool_id)
        if not attempt.ranks:
            del attempts[spool.attempt]
        if not attempts:
            del self._sessions[spool.session_id]

    def _note(self, spool: Spool, *, final: bool, now_ns: int) -> None:
        self._saved.add(spool.spool_id)
        attempt = self._sessions.get(spool.session_id, {}).get(spool.attempt)
        if attempt is None:
            return
        attempt.last_ns = max(attempt.last_ns, now_ns)
        if final:
            attempt.unfinished.discard(spool.spool_id)


def _as_known(spool: Spool, known: Spool) -> Spool:
    """The spool with the attempt that it was given; session and rank are checked with its positions."""
    if known.session_id == spool.session_id and _declared(known) != spool.attempt:
        raise RankmemError(
            Code.INVALID,
            f"spool {spool.spool_id} is known as session {known.session_id}, attempt {_declared(known)}, "
            f"rank {known.rank}",
            "open it with these values; spool ids are never used twice",
        )
    return replace(spool, attempt=known.attempt, declared_attempt=spool.attempt)


def _declared(spool: Spool) -> int:
    return spool.attempt if spool.declared_attempt is None else spool.declared_attempt


def _as_opened(spool: Spool) -> Spool:
    return replace(spool, attempt=_declared(spool), declared_attempt=None)


def _start_of(spool: Spool) -> str:
    """The text of its start; an older agent's spool has nothing but its declared attempt."""
    return spool.start or f"attempt {_declared(spool)}"


def _taken(spool: Spool, owner: str | None, hint: str) -> RankmemError:
    what, whose = f"attempt {spool.attempt} of session {spool.session_id}", "another start's by now"
    if owner is not None:
        what, whose = f"rank {spool.rank} of {what}", f"another recording's, {owner}"
    return RankmemError(Code.CONFLICT, f"{what} is {whose}", hint)
