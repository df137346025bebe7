"""``rankmem fetch``: asks an aggregator for events that stayed on their hosts, and reports what came.

Stage: the verb's process. In: an aggregator, a session and ranks; out: a report on stderr.
"""

from __future__ import annotations

from rankmem_cli.args.options import Target
from rankmem_cli.show.progress import show_progress
from rankmem_cli.show.render import note
from rankmem_protos.bounds import RANKS_MAX
from rankmem_protos.errors import Code, RankmemError


def fetch_events(target: Target, session: str | None, ranks: str | None, *, timeout_s: float) -> None:
    """Brings the events and reports.

    Args:
        target: the aggregator.
        session: as a reading verb's ``--session``.
        ranks: numbers and ranges, separated by commas; None: all.
        timeout_s: longest wait, in seconds.

    Raises:
        RankmemError: INVALID without an aggregator; UNAVAILABLE if some did not come, NOT_FOUND if some are
            gone.
    """
    from rankmem_aggregator.query.fetching import fetch
    from rankmem_aggregator.query.remote import RemoteQueries

    if target.aggregator is None:
        raise RankmemError(
            Code.INVALID, "events are brought by a running aggregator", "rankmem fetch --aggregator HOST:PORT"
        )
    with RemoteQueries(target.aggregator, target.credentials) as queries:
        session_id = queries.session_id(session)
        with show_progress("rankmem: fetching") as update:
            found = fetch(
                queries,
                session_id,
                None if ranks is None else ranks_of(ranks),
                timeout_s=timeout_s,
                said=lambda came, wanted: update(f"rankmem: {came} of {wanted} stretches came"),
            )
    note(f"session {session_id}: {found.came} stretches came")
    for host, unreached in sorted(found.unconnected.items()):
        ranks_text = ", ".join(map(str, unreached))
        note(f"host {host}: no shipper of ranks {ranks_text} is connected to {target.aggregator}")
    if found.gone:
        note(f"{found.gone} stretches are gone: their hosts have deleted them for their room")
    if found.unconnected or found.waiting:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"events of {sum(map(len, found.unconnected.values()))} ranks could not be asked for, "
            f"{found.waiting} stretches did not come in {timeout_s:g} s",
            "rankmem fetch again, at the aggregator that their hosts are connected to; "
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
            found |= set(range(int(first), min(int(last or first), RANKS_MAX) + 1))
    except ValueError as exc:
        raise RankmemError(
            Code.INVALID, f"{text!r} names no ranks", "numbers and ranges with commas: --ranks 0,4-7"
        ) from exc
    return sorted(found)
