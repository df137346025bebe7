"""``rankmem ranks``: did all ranks come, and is anything missing."""

from __future__ import annotations

from rankmem_cli.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.render import Format


def ranks(
    db: ReadDb = None, aggregator: Aggregator = None, session: Session = None, output: Output = Format.TABLE
) -> None:
    """Where the ranks ran, and whether all of it is there."""
    from rankmem_cli import columns
    from rankmem_cli.patience import patience
    from rankmem_cli.render import show
    from rankmem_cli.target import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = queries.ranks(facts.session_id)
        show(rows, columns.ranks(facts.started_ns), output=output, title=facts.title())
