"""Opens the target of a reading verb, and finds the session and the instant that it names.

Stage: between arguments and query. In: the shared options. Out: an open ``Queries`` of the aggregator
package, the same for a file and a running aggregator. Runs in the command line's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_cli.args.options import Target
from rankmem_cli.args.times import parse_time
from rankmem_cli.show.units import utc_text
from rankmem_protos.clock import has_clock

if TYPE_CHECKING:
    from rankmem_aggregator.query.queries import Queries


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """The facts of a session that headings, offsets and notes need."""

    session_id: str
    """A ``SessionId``: questions take it without looking it up again."""
    name: str | None
    started_ns: int | None
    """Its start, ns since 1970 UTC; the zero of every offset. None until a rank has reported."""
    detail: str | None = None
    """RANKMEM_DETAIL of its ranks."""
    source: str | None = None
    """live, or the format of the imported recording."""
    events: int = 0
    not_recorded: tuple[frozenset[str], ...] = ()
    """What its ranks had switched off (operators, stacks, modules), each distinct set once."""
    was_reduced: bool = False
    """All of these were not recorded in some steps of a rank (``rankmem control``)."""

    given: GivenOptions = field(default_factory=GivenOptions)
    """How it was chosen: completes the commands of whatever is said about it."""

    def title(self) -> str:
        """The session in one line: id, name, start in UTC."""
        name = f" ({self.name})" if self.name else ""
        if self.started_ns is not None and not has_clock(self.started_ns):
            return f"session {self.session_id}{name}, from a recording without times"
        return f"session {self.session_id}{name}, started {utc_text(self.started_ns)} UTC"


def open_queries(target: Target, *, unsafe: bool = False) -> Queries:
    """Opens the target for reading; raises what ``connect`` raises.

    Args:
        unsafe: DuckDB without restrictions, for a file that the user trusts.
    """
    from rankmem_aggregator.query import open as opening

    queries = opening.open_queries(target.address(), target.credentials, unsafe=unsafe, engine=target.engine)
    queries.given_options = target.given
    return queries


@contextmanager
def open_session(target: Target, session: str | None) -> Iterator[tuple[Queries, SessionFacts]]:
    """Opens the target and finds the session in it; raises what ``open_queries`` and ``session_facts`` do."""
    from rankmem_aggregator.query.asking import one_answer

    with open_queries(target) as queries, one_answer(queries):
        facts = session_facts(queries, session)
        with facts.given.in_hints():
            yield queries, facts


def session_facts(queries: Queries, session: str | None) -> SessionFacts:
    """The session that ``--session`` means.

    Raises:
        RankmemError: NOT_FOUND if there is no such session.
    """
    row = queries.session_facts(session)
    return SessionFacts(
        session_id=row["session_id"],
        name=row.get("name"),
        started_ns=row.get("started_ns"),
        detail=row.get("detail"),
        source=row.get("source"),
        events=row.get("events") or 0,
        not_recorded=tuple(frozenset(filter(None, off.split(","))) for off in row.get("not_recorded") or ()),
        was_reduced=bool(row.get("was_reduced")),
        given=replace(queries.given_options, session=None if session is None else str(row["session_id"])),
    )


def moment(text: str, facts: SessionFacts) -> Literal["peak", "total"] | int:
    """What ``--at`` of ``ops`` means: a keyword, or an instant in ns since 1970 UTC."""
    if text == "peak":
        return "peak"
    return "total" if text == "total" else instant(text, facts)


def instant(text: str, facts: SessionFacts) -> int:
    """The TIME of ``--at`` in ns since 1970 UTC; offsets count from the session's start.

    Raises:
        RankmemError: INVALID if it is not a time.
    """
    return parse_time(text, session_started_ns=facts.started_ns or 0)
