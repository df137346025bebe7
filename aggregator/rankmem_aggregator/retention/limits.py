"""Which sessions are kept: the limits, applied to the stored sessions. Pure values; deletes nothing.

Stage: beside ingest. In: the limits of the configuration and the sessions of a database; out: the sessions
to delete, oldest first. A session is deleted whole or not at all, and never while it may send more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from rankmem_aggregator.config import GIB, AggregatorConfig
from rankmem_protos.errors import Code, RankmemError

NS_PER_S: Final = 1_000_000_000
NS_PER_DAY: Final = 86_400 * NS_PER_S
RESTART_S: Final = 600.0
"""A session whose ranks have all ended counts as running for so long: elastic launchers start the next
attempt within seconds to minutes, and its rows belong to the same session."""
SILENT_S: Final = 86_400.0
"""A session with a rank that did not report its end counts as running until it was silent for a day. A
running rank is sampled once a second, so silence means that its host, shipper or connection is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """The facts of a session that decide whether it is kept."""

    session_id: str
    last_ns: int
    """When its last batch was stored, ns since 1970 on the aggregator's clock."""
    final: bool
    """The last batch of each of its ranks is stored."""

    def is_over(self, now_ns: int) -> bool:
        """Whether no more of it is expected."""
        quiet_s = (now_ns - self.last_ns) / NS_PER_S
        return quiet_s > (RESTART_S if self.final else SILENT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is kept; 0 sets no limit."""

    days: float = 0.0
    """Sessions whose last batch is older are deleted."""
    sessions: int = 0
    """So many of the newest are kept."""
    size_bytes: int = 0
    """The oldest are deleted until the used part of the database is at most so large."""

    @classmethod
    def of(cls, config: AggregatorConfig) -> Self:
        """The limits that an aggregator was given."""
        return cls(
            days=config.keep_days, sessions=config.keep_sessions, size_bytes=int(config.keep_gib * GIB)
        )

    @property
    def are_set(self) -> bool:
        """Whether anything is ever deleted."""
        return bool(self.days or self.sessions or self.size_bytes)


def sessions_due(
    stored: Sequence[StoredSession], limits: Limits, *, now_ns: int, used_bytes: int
) -> list[StoredSession]:
    """The sessions to delete now, oldest first.

    The size of a session is unknown until it is deleted, so for the limit in bytes one session is returned at
    a time: the caller deletes it, measures the database, and asks again.

    Args:
        stored: all sessions, oldest first.
        limits: what is kept.
        now_ns: on the aggregator's clock.
        used_bytes: of the database, without free blocks.
    """
    over = [session for session in stored if session.is_over(now_ns)]
    due = {session.session_id for session in over if _is_old(session, limits, now_ns)}
    if limits.sessions:
        surplus = max(0, len(stored) - limits.sessions)
        due |= {session.session_id for session in stored[:surplus]}
    if not due and limits.size_bytes and used_bytes > limits.size_bytes:
        due |= {session.session_id for session in over[:1]}
    return [session for session in over if session.session_id in due]


def check_over(
    stored: Sequence[StoredSession], session_ids: Sequence[str], *, now_ns: int, place: str
) -> None:
    """Raises unless all of these sessions are there and over.

    Args:
        stored: all sessions.
        session_ids: to be deleted.
        now_ns: on the aggregator's clock.
        place: the database or lake, for messages.

    Raises:
        RankmemError: NOT_FOUND for an unknown session, CONFLICT for one that may still be running.
    """
    known = {session.session_id: session for session in stored}
    for session_id in session_ids:
        if session_id not in known:
            raise RankmemError(
                Code.NOT_FOUND,
                f"no session {session_id} in {place}",
                "give its full id, as rankmem sessions shows it",
            )
        if not known[session_id].is_over(now_ns):
            raise RankmemError(
                Code.CONFLICT,
                f"session {session_id} may still be running: a rank has not ended, or only just now",
                "wait ten minutes after its end, or a day if a rank did not report its end",
            )


def _is_old(session: StoredSession, limits: Limits, now_ns: int) -> bool:
    return bool(limits.days) and now_ns - session.last_ns > limits.days * NS_PER_DAY
