"""``rankmem fetch``: asks an aggregator for events that stayed on their hosts, and reports what came.

Stage: the verb's process. In: an aggregator, a session and ranks; out: a report on stderr.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankmem_cli.args.options import Target
from rankmem_cli.args.times import parse_time
from rankmem_cli.show.progress import show_progress
from rankmem_cli.show.render import note
from rankmem_protos.bounds import RANKS_MAX
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.query.fetching import Fetched
    from rankmem_aggregator.query.remote import RemoteQueries


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events are brought, as the verb's options say it."""

    ranks: str | None = None
    """Numbers and ranges, separated by commas; None: all."""
    is_peak: bool = False
    """Those that can hold the job's peak."""
    from_: str | None = None
    """A TIME."""
    until: str | None = None
    """A TIME."""


def fetch_events(target: Target, session: str | None, wanted: Wanted, *, timeout_s: float) -> None:
    """Brings the events and reports.

    Args:
        target: the aggregator.
        session: as a reading verb's ``--session``.
        wanted: which events.
        timeout_s: longest wait, in seconds.

    Raises:
        RankmemError: INVALID without an aggregator, or for options that exclude each other; UNAVAILABLE if
            some did not come, or were not stored in time; NOT_FOUND if some are gone.
    """
    from rankmem_aggregator.query.fetching import is_stored_within
    from rankmem_aggregator.query.remote import RemoteQueries

    deadline_s = time.monotonic() + timeout_s
    if target.aggregator is None:
        raise RankmemError(
            Code.INVALID, "events are brought by a running aggregator", "rankmem fetch --aggregator HOST:PORT"
        )
    if wanted.is_peak and (wanted.ranks, wanted.from_, wanted.until) != (None, None, None):
        raise RankmemError(
            Code.INVALID,
            "the job's peak may be at any time and needs all ranks",
            "give --around job-peak alone, without --ranks, --from and --until",
        )
    with RemoteQueries(target.aggregator, target.credentials) as queries:
        row = queries.session_facts(session)
        with show_progress("rankmem: fetching") as update:
            found = _fetched(
                queries,
                row,
                wanted,
                timeout_s,
                lambda came, all_of_them: update(f"rankmem: {came} of {all_of_them} stretches came"),
            )
        _report(found, row["session_id"], target.aggregator, timeout_s)
        with show_progress("rankmem: waiting until the lake has them"):
            is_stored = is_stored_within(queries.aggregator_state, deadline_s - time.monotonic())
    if not is_stored:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"{target.aggregator} has not written all that it received to its lake in {timeout_s:g} s",
            "ask with --aggregator meanwhile; rankmem status says what it waits for",
        )


def _fetched(
    queries: RemoteQueries,
    row: dict[str, Any],
    wanted: Wanted,
    timeout_s: float,
    said: Callable[[int, int], None],
) -> Fetched:
    from rankmem_aggregator.query.fetching import fetch, fetch_peak
    from rankmem_aggregator.query.older_version import explained

    session_id = row["session_id"]
    if wanted.is_peak:
        try:
            return fetch_peak(queries, session_id, timeout_s=timeout_s, said=said)
        except RankmemError as exc:
            raise explained(exc, queries.target) from exc
    from_ns, until_ns = (
        None if text is None else parse_time(text, session_started_ns=row["started_ns"] or 0)
        for text in (wanted.from_, wanted.until)
    )
    return fetch(
        queries,
        session_id,
        None if wanted.ranks is None else ranks_of(wanted.ranks),
        from_ns=from_ns,
        until_ns=until_ns,
        timeout_s=timeout_s,
        said=said,
    )


def _report(found: Fetched, session_id: str, aggregator: str, timeout_s: float) -> None:
    """Notes what came. Raises as :func:`fetch_events`."""
    note(f"session {session_id}: {found.came} stretches came")
    for host, unreached in sorted(found.unconnected.items()):
        ranks_text = ", ".join(map(str, unreached))
        note(f"host {host}: no shipper of ranks {ranks_text} is connected to {aggregator}")
    if found.gone:
        note(f"{found.gone} stretches are gone: their hosts have deleted them for their room")
    if found.unconnected or found.waiting:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"events of {sum(map(len, found.unconnected.values()))} ranks could not be asked for, "
            f"{found.waiting} stretches did not come in {timeout_s:g} s",
            "fetch them again, from the aggregator that their hosts are connected to; "
            "rankmem ship DIR on a host whose shipper has ended",
        )
    if found.gone:
        raise RankmemError(
            Code.NOT_FOUND,
            f"{found.gone} stretches are gone, and with them the answers about events of these ranks",
            "a larger RANKMEM_EDGE keeps more; SELECT * FROM rank_availability lists the ranks",
        )


def ranks_of(text: str) -> list[int]:
    """The ranks that a list of numbers and ranges names.

    Raises:
        RankmemError: INVALID for another text.
    """
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            ranks = range(int(first), min(int(last or first), RANKS_MAX) + 1)
            if not ranks:  # and none at all would be all of them
                raise ValueError(part)
            found.update(ranks)
    except ValueError as exc:
        raise RankmemError(
            Code.INVALID, f"{text!r} names no ranks", "numbers and ranges with commas: --ranks 0,4-7"
        ) from exc
    return sorted(found)
