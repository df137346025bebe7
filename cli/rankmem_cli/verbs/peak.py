"""``rankmem peak``: which rank peaked, and when."""

from __future__ import annotations

from rankmem_cli.options import Aggregator, Output, Rank, ReadDb, Session
from rankmem_cli.render import Format


def peak(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    rank: Rank = None,
    output: Output = Format.TABLE,
) -> None:
    """Each rank's peak and its exact instant.

    The high-water mark of requested bytes on each device, the highest first.
    """
    from rankmem_cli import columns
    from rankmem_cli.patience import patience
    from rankmem_cli.render import show
    from rankmem_cli.target import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = queries.peak(facts.session_id, rank=rank)
        show(rows, columns.peak(facts.started_ns), output=output, title=facts.title())
