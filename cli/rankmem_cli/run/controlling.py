"""``rankmem control``: gives an order to a running job's ranks, and reports what came of it.

Stage: the verb's process. In: an aggregator, a session and what is to be recorded; out: a report on stderr.
"""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Any, Final, Literal

from rankmem_aggregator.query.missing import ranks_text
from rankmem_cli.args.options import Target
from rankmem_cli.run.fetching import ranks_of
from rankmem_cli.show.progress import show_progress
from rankmem_cli.show.render import note
from rankmem_cli.show.session import open_queries
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.query.controlling import Ordered, Wanted
    from rankmem_aggregator.query.next_commands import GivenOptions
    from rankmem_aggregator.query.queries import Queries

SESSIONS_NAMED_MAX: Final = 5
"""In a refusal; of more their number is said."""
_MEANING: Final = {
    "start": "everything is recorded",
    "full": "everything is recorded",
    "stop": "memory alone is recorded: no operators, stacks and modules",
    "summary": "memory alone is recorded: no operators, stacks and modules",
    "auto": "each rank records everything of some steps, one as high as its peak if that recurs, and memory "
    "alone of the others",
}


def control_ranks(
    target: Target,
    session: str | None,
    what: Literal["start", "stop", "detail"],
    level: Literal["full", "summary", "auto"] | None,
    *,
    ranks: str | None,
    steps: str | None,
    timeout_s: float,
) -> None:
    """Gives the order and reports.

    Args:
        target: the aggregator, or the database that it writes.
        session: as a reading verb's ``--session``.
        what, level: as the verb's arguments.
        ranks: numbers and ranges, separated by commas; None: all.
        steps: N-M or N-; None: from the step on that all ranks can reach, for good.
        timeout_s: longest wait for the ranks, in seconds.

    Raises:
        RankmemError: INVALID for arguments that do not fit together, and without a session where several are
            running; UNAVAILABLE where ranks did not learn of it in time, UNSUPPORTED where some cannot follow
            it; what ``query.controlling.order`` raises.
    """
    from rankmem_aggregator.query.controlling import order, outcome
    from rankmem_aggregator.query.remote import RemoteQueries
    from rankmem_aggregator.query.types import SessionId

    wanted = _wanted(what, level, ranks, steps)
    with open_queries(target) as queries:
        if not isinstance(queries, RemoteQueries):
            raise RankmemError(
                Code.INVALID,
                f"{target.address()} is a file that no aggregator holds: none of its sessions is running",
                "rankmem control --aggregator HOST:PORT",
            )
        if session is None:
            refuse_a_guess(queries)
        session_id = SessionId(queries.session_id(session))
        with show_progress("rankmem: ordering"):
            ordered = order(queries, session_id, wanted, _asked_by())
        _note_order(session_id, wanted, ordered)
        with show_progress("rankmem: waiting") as update:
            rows = outcome(
                queries,
                session_id,
                ordered,
                timeout_s=timeout_s,
                said=lambda followed, told: update(f"rankmem: {followed} of {told} ranks have answered"),
            )
    _report(rows, ordered, timeout_s, target.given)


def refuse_a_guess(queries: Queries) -> None:
    """Raises INVALID where several sessions are running: the newest may be somebody else's."""
    running = [row for row in queries.sessions().to_pylist() if row["state"] == "running"]
    if len(running) < 2:
        return
    named = ", ".join(f"{row['session_id']} ({row['name']})" for row in running[:SESSIONS_NAMED_MAX])
    more = f" and {len(running) - SESSIONS_NAMED_MAX} more" if len(running) > SESSIONS_NAMED_MAX else ""
    raise RankmemError(
        Code.INVALID, f"{len(running)} sessions are running: {named}{more}", "name one of them: --session ID"
    )


def _wanted(what: str, level: str | None, ranks: str | None, steps: str | None) -> Wanted:
    from rankmem_aggregator.query.controlling import Wanted

    if (what == "detail") is (level is None):
        message = "detail needs a level" if level is None else f"{what} takes no level, and {level} is given"
        raise RankmemError(Code.INVALID, message, "rankmem control detail full, summary or auto")
    first, last = (None, None) if steps is None else _steps_of(steps)
    numbers = () if ranks is None else ranks_of(ranks)
    return Wanted(what=level or what, ranks=numbers, step_first=first, step_last=last)


def _steps_of(text: str) -> tuple[int, int | None]:
    first, dash, last = text.partition("-")
    wrong = not first.isdecimal() or (last and not last.isdecimal())
    if wrong or int(last or first) < int(first) or int(last or first) >= NUMBER_MAX:
        raise RankmemError(Code.INVALID, f"{text!r} names no steps", "--steps 100-120, or 100- for good")
    if not dash:
        return int(first), int(first)
    return int(first), int(last) if last else None


def _asked_by() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _note_order(session_id: str, wanted: Wanted, ordered: Ordered) -> None:
    until = "on" if ordered.step_last is None else f"to step {ordered.step_last}"
    note(
        f"session {session_id}, {ranks_text(ordered.told)}: from step {ordered.step_first} {until} "
        f"{_MEANING[wanted.what]}"
    )
    if ordered.step_first <= ordered.furthest_step:
        note(
            f"the furthest rank is about in step {ordered.furthest_step}: each follows at its next step, "
            "not all at the same one"
        )


def _report(rows: list[dict[str, Any]], ordered: Ordered, timeout_s: float, given: GivenOptions) -> None:
    by_state: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_state.setdefault(row["state"], []).append(row)
    followed = [*by_state.get("applied", ()), *by_state.get("over", ())]
    if followed:
        note(f"{ranks_text([row['rank'] for row in followed])}: followed")
    for step in sorted({row["applied_step"] for row in followed if row["is_late"]} - {None}):
        late = [row["rank"] for row in followed if row["is_late"] and row["applied_step"] == step]
        note(f"{ranks_text(late)}: learned of it late, and followed at step {step}, not {ordered.step_first}")
    if waiting := [row["rank"] for row in by_state.get("waiting", ())]:
        why = f"told; step {ordered.step_first} has not begun"
        if not ordered.is_far:
            why = (
                f"told, and nothing came of it in {timeout_s:g} s: no step is known to have ended there since"
            )
        look = given.complete(f'rankmem sql "FROM control WHERE order_id = {ordered.order_id}"')
        note(f"{ranks_text(waiting)}: {why}. What comes of it: {look}")
    _raise_if_not_followed(by_state, ordered, timeout_s)


def _raise_if_not_followed(
    by_state: dict[str, list[dict[str, Any]]], ordered: Ordered, timeout_s: float
) -> None:
    if obstacles := by_state.get("obstacle"):
        raise RankmemError(
            Code.UNSUPPORTED,
            f"{ranks_text([row['rank'] for row in obstacles])}: {obstacles[0]['obstacle']}",
            "the other ranks were told; to have all alike, order it again with --ranks",
        )
    if refused := by_state.get("refused"):
        raise RankmemError(
            Code.UNSUPPORTED,
            f"{ranks_text([row['rank'] for row in refused])}: nothing changes, since the steps are calls of "
            "the model, which only full detail sees; or, with auto, since sizes of another library's blocks "
            "of CPU memory are not known",
            "call rankmem_agent.step() after each batch",
        )
    known = {row["rank"] for rows in by_state.values() for row in rows}
    if silent := [rank for rank in ordered.told if rank not in known]:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"{ranks_text(silent)}: not known to have learned of it after {timeout_s:g} s",
            "rankmem status shows whether their shippers are connected; one that comes back is told again",
        )
