"""Orders to a session's running ranks: from which step on, given, and what came of them.

Stage: query, in the process of ``rankmem control``. In: a running aggregator, a session, what is wanted;
out: the order as it was given, and the rows of the view ``control`` about it. All ranks get the same step:
one that none of them has begun by the time that it learns of it, as far as their pace so far tells. A rank
that learns of it later follows at its next step, and its row says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.query_pb2 import ControlRequest

LEAD_S: Final = 2.0
"""From asking to the step: an order is in the rank's control page in 0.3 s; a busy host takes longer."""
STEPS_AHEAD_MIN: Final = 2
"""Steps of seconds: the one that goes on, and one more."""
SILENT_S_MAX: Final = 5.0
"""Since a rank's last step that is known. One that is silent for longer is not stepping: a checkpoint, an
evaluation."""
POLL_S: Final = 0.5
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be recorded."""

    what: str
    """start, stop, full or summary."""
    ranks: Sequence[int] = ()
    """Empty: all."""
    step_first: int | None = None
    """None: as soon as all ranks can."""
    step_last: int | None = None
    """Then as before; None: for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """An order that was given."""

    order_id: int
    attempt: int
    told: tuple[int, ...]
    """Ranks, ascending."""
    step_first: int
    step_last: int | None
    furthest_step: int
    """The step that the furthest rank was in when the order was given, about."""
    is_far: bool
    """The first step is one that the ranks do not reach soon."""


def furthest_step(progress: Sequence[Row], now_ns: int) -> int:
    """The step that the furthest rank is in now, by its last step that is known and its pace."""
    return max((_step_now(row, now_ns) for row in progress), default=0)


def agreed_step(progress: Sequence[Row], now_ns: int) -> int:
    """A step that no rank will have begun in LEAD_S, by their pace."""
    ahead = [STEPS_AHEAD_MIN]
    ahead += [int(LEAD_S * 1e9 / row["step_ns"]) + 1 for row in progress if row["step_ns"]]
    return furthest_step(progress, now_ns) + max(ahead)


def order(queries: RemoteQueries, session_id: str, wanted: Wanted, asked_by: str) -> Ordered:
    """Tells the ranks.

    Args:
        queries: the aggregator that the ranks ship to.
        session_id: the session.
        wanted: what is to be recorded.
        asked_by: who asks, as user@host.

    Raises:
        RankmemError: NOT_FOUND where no rank runs, or one that is asked for does not; INVALID where all of
            the steps are over; DENIED and UNSUPPORTED as :meth:`RemoteQueries.control`.
    """
    now_ns = queries.aggregator_state().now_ns
    progress = queries.sql(query_text("control_progress"), {"session": session_id}).to_pylist()
    meant = [row for row in progress if not wanted.ranks or row["rank"] in wanted.ranks]
    furthest = furthest_step(meant, now_ns)
    if wanted.step_last is not None and wanted.step_last <= furthest:
        raise RankmemError(
            Code.INVALID,
            f"step {wanted.step_last} is over or goes on: the furthest rank is about in step {furthest}",
            f"name steps from {agreed_step(meant, now_ns)} on",
        )
    agreed = agreed_step(meant, now_ns)
    first = agreed if wanted.step_first is None else wanted.step_first
    request = ControlRequest(
        session_id=session_id,
        ranks=wanted.ranks,
        what=wanted.what,
        step_first=first,
        step_last=wanted.step_last,
        asked_by=asked_by,
        order_after=max((row["last_order_id"] or 0 for row in progress), default=0),
    )
    reply = queries.control(request)
    return Ordered(
        order_id=reply.order_id,
        attempt=reply.attempt,
        told=tuple(reply.told),
        step_first=first,
        step_last=wanted.step_last,
        furthest_step=furthest,
        is_far=first > agreed,
    )


def outcome(
    queries: RemoteQueries,
    session_id: str,
    ordered: Ordered,
    *,
    timeout_s: float,
    said: Callable[[int, int], None] = lambda followed, told: None,
) -> list[Row]:
    """The rows of ``control`` about an order, once each rank has followed it or refused.

    Of one whose steps are far ahead: once each rank was told.

    Args:
        timeout_s: longest wait, in seconds; then ranks may be waiting, or have no row yet.
        said: called with how many these are, and how many were told.
    """
    deadline_s, pause = time.monotonic() + timeout_s, threading.Event()
    text = query_text("control_of_order")
    given: dict[str, Value] = {"session": session_id, "order_id": ordered.order_id}
    while True:
        rows: list[Row] = queries.sql(text, given).to_pylist()
        decided = sum(ordered.is_far or row["state"] != "waiting" for row in rows)
        said(decided, len(ordered.told))
        if decided >= len(ordered.told) or time.monotonic() >= deadline_s:
            return rows
        pause.wait(POLL_S)


def _step_now(row: Row, now_ns: int) -> int:
    if row["last_step"] is None:
        return 0
    silent_ns = min(max(now_ns - row["last_ns"], 0), int(SILENT_S_MAX * 1e9))
    return int(row["last_step"] + 1 + (silent_ns // row["step_ns"] if row["step_ns"] else 0))
