"""``rankmem hosts``: the machines of a job."""

from __future__ import annotations

from rankmem_cli.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.render import Format


def hosts(
    db: ReadDb = None, aggregator: Aggregator = None, session: Session = None, output: Output = Format.TABLE
) -> None:
    """The hosts of a job and their highest peaks."""
    from rankmem_cli import columns
    from rankmem_cli.patience import patience
    from rankmem_cli.render import show
    from rankmem_cli.target import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = queries.hosts(facts.session_id)
        show(rows, columns.hosts(), output=output, title=facts.title())
