"""The other runs of a session: other tasks of its launcher, and earlier uses of its name.

Stage: ``rankmem run``, after the last acknowledgement. In: the destination and the session. Out: a short
wait, or a line on stderr. Runs in the main thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rankmem_agent.launchers import task_of
from rankmem_cli.run.child import SignalRelay
from rankmem_cli.run.destination import Destination
from rankmem_cli.show.render import note
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.query.queries import Queries

TASKS_WAIT_S: Final = 10.0
"""Wait for a job's other tasks, which end within a second or so of each other."""
_LOOK_EVERY_S: Final = 0.25
Answer = TypeVar("Answer")
_STILL_COMING: Final = frozenset({"running", "awaited"})


def is_one_of_several() -> bool:
    """Whether a launcher started this run as one of several tasks."""
    task = task_of(os.environ)
    return task is not None and task.num_tasks > 1


def is_reporter() -> bool:
    """Whether this run reports: only a launcher's first task does, for all its tasks."""
    task = task_of(os.environ)
    return task is None or task.rank == 0


def is_known(destination: Destination, session_id: str) -> bool:
    """Whether any of the session is stored, as far as we may ask."""
    found = ask(destination, lambda queries: session_id in queries.sessions()["session_id"].to_pylist())
    return bool(found)


def wait_for_tasks(destination: Destination, session_id: str, relay: SignalRelay) -> None:
    """Waits at most TASKS_WAIT_S for the last attempt's ranks to end, so that a report covers all of them."""

    def wait(queries: Queries) -> None:
        deadline = time.monotonic() + TASKS_WAIT_S
        while time.monotonic() < deadline and not relay.num_stop_requests:
            ranks = queries.ranks(session_id).to_pylist()
            last = max((row["attempt"] for row in ranks), default=0)
            if not any(row["attempt"] == last and row["state"] in _STILL_COMING for row in ranks):
                return
            relay.stop_requested.wait(_LOOK_EVERY_S)

    ask(destination, wait)


def wait_for_other_recorders(destination: Destination, relay: SignalRelay, drain_s: float) -> None:
    """Waits while other runs record into the database that this process holds."""
    deadline = time.monotonic() + drain_s
    is_noted = False
    while destination.has_other_recorders():
        if time.monotonic() >= deadline or relay.num_stop_requests > 1:
            note("rankmem: other runs still record into this run's database: their records stay in spools")
            note("Try: rankmem serve, and rankmem run --aggregator HOST:PORT for each of them")
            return
        if not is_noted:
            is_noted = True
            note("rankmem: waiting for other runs that record into this database (Ctrl-C twice to stop)")
        relay.stop_requested.clear()
        relay.stop_requested.wait(_LOOK_EVERY_S)


def line_about_others(
    session_id: str, ranks: Sequence[dict[str, Any]], host_uid: str, began_ns: int
) -> str | None:
    """A line saying that a session contains another run than this one; None if it does not.

    Args:
        session_id: the session.
        ranks: rows of the query ``ranks``.
        host_uid: this host.
        began_ns: when this run began, by this host's clock.
    """
    from rankmem_cli.show.summary import NEVER_SEEN

    seen = [row for row in ranks if row["state"] not in NEVER_SEEN]
    own = {row["attempt"] for row in seen if row["host_uid"] == host_uid and _host_ns(row) >= began_ns}
    others = {row["attempt"] for row in seen} - own
    if not own or not others:
        return None
    this = f"this run is {_attempts(own)}"
    before = {row["attempt"] for row in seen if row["attempt"] in others and row["started_ns"] < began_ns}
    if before:
        return f"rankmem: session {session_id} already existed ({_attempts(before)}): {this}"
    return f"rankmem: another run is also recording into session {session_id} ({_attempts(others)}): {this}"


def ask(destination: Destination, question: Callable[[Queries], Answer]) -> Answer | None:
    """The answer; None if the token may write but not read."""
    from rankmem_aggregator.query.open import open_queries

    with open_queries(destination.address, destination.credentials) as queries:
        try:
            return question(queries)
        except RankmemError as exc:
            if exc.code is not Code.DENIED:
                raise
            return None


def _host_ns(row: dict[str, Any]) -> int:
    return int(row["started_ns"] or 0) - int(row["clock_offset_ns"] or 0)


def _attempts(numbers: set[int]) -> str:
    return ("attempt " if len(numbers) == 1 else "attempts ") + ", ".join(map(str, sorted(numbers)))
