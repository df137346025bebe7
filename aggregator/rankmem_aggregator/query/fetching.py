"""Rows of events brought from their hosts: asked for at an aggregator, and waited for.

Stage: query, in the process of ``rankmem fetch``. In: a running aggregator, a session and ranks; out: what
came and what did not. The aggregator passes the question on to the shippers that are connected to it; what
comes is stored as any batch is, and seen in ``availability``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.sql import query_text

ASK_AGAIN_S: Final = 20.0
"""A shipper that connects again has forgotten what it was asked."""
POLL_S: Final = 1.0
UNCONNECTED_S: Final = 10.0
"""A shipper that lost its connection is back by then, or it has gone."""
STRETCHES_MAX: Final = 10_000
"""Asked for by one call, as the aggregator takes them."""


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What a fetch has brought."""

    came: int = 0
    """Stretches that came."""
    gone: int = 0
    """Stretches that their hosts have no longer."""
    waiting: int = 0
    """Stretches that did not come in time, though their shipper is connected."""
    unconnected: dict[str, list[int]] = field(default_factory=dict)
    """By host the ranks of which no shipper is connected to the aggregator."""

    @property
    def is_whole(self) -> bool:
        """Whether all that was asked for is here."""
        return not (self.gone or self.waiting or self.unconnected)


def fetch(
    queries: RemoteQueries,
    session_id: str,
    ranks: Sequence[int] | None,
    *,
    timeout_s: float,
    said: Callable[[int, int], None] = lambda came, all_of_them: None,
) -> Fetched:
    """Brings the rows of events that stayed on their hosts.

    Args:
        queries: the aggregator.
        session_id: the full id.
        ranks: of these alone; None: of all.
        timeout_s: longest wait.
        said: called with the stretches that came and all that are wanted, now and then.

    Raises:
        RankmemError: the aggregator does not answer, or is older.
    """
    began_s = time.monotonic()
    given = None if ranks is None else ",".join(map(str, ranks))
    asked_s: dict[str, float] = {}
    lost_s: dict[str, float] = {}  # since when no shipper of a spool is connected
    gone_before = _gone(queries, session_id, given)
    first = left = _left(queries, session_id, given)
    while left:
        now_s = time.monotonic()
        for spool_id, rows in left.items():
            if now_s - asked_s.get(spool_id, -ASK_AGAIN_S) < (POLL_S if spool_id in lost_s else ASK_AGAIN_S):
                continue
            asked_s[spool_id] = now_s
            if _ask(queries, spool_id, rows):
                lost_s.pop(spool_id, None)
            else:
                lost_s.setdefault(spool_id, now_s)
        said(_count(first) - _count(left), _count(first))
        over = now_s - began_s >= timeout_s
        if over or all(now_s - lost_s.get(spool_id, now_s) >= UNCONNECTED_S for spool_id in left):
            break
        threading.Event().wait(POLL_S)
        left = _left(queries, session_id, given)
    gone = _gone(queries, session_id, given)
    found = Fetched(came=_count(first) - _count(left) - (gone - gone_before), gone=gone)
    for spool_id, rows in left.items():
        if spool_id in lost_s:
            found.unconnected.setdefault(rows[0]["host_uid"] or "unknown", []).append(rows[0]["rank"])
        else:
            found.waiting += len(rows)
    return found


def _left(queries: RemoteQueries, session_id: str, ranks: str | None) -> dict[str, list[dict[str, Any]]]:
    """The stretches that are on their hosts, by spool."""
    text = query_text("stretches_on_hosts")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in queries.sql(text, {"session": session_id, "ranks": ranks}).to_pylist():
        found.setdefault(row["spool_id"], []).append(row)
    return found


def _gone(queries: RemoteQueries, session_id: str, ranks: str | None) -> int:
    text = query_text("stretches_gone")
    return int(queries.sql(text, {"session": session_id, "ranks": ranks})["gone"][0].as_py())


def _ask(queries: RemoteQueries, spool_id: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Asks for stretches; False where no shipper of the spool is connected."""
    is_connected = True
    for at in range(0, len(rows), STRETCHES_MAX):
        part = rows[at : at + STRETCHES_MAX]
        ranges = [(row["sequence_first"], row["sequence_last"]) for row in part]
        is_connected &= queries.fetch(spool_id, ranges)
    return is_connected


def _count(left: dict[str, list[dict[str, Any]]]) -> int:
    return sum(map(len, left.values()))
