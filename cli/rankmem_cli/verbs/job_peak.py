"""``rankmem job-peak``: when the sum over all ranks stood highest."""

from __future__ import annotations

from rankmem_cli.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.render import Format


def job_peak(
    db: ReadDb = None, aggregator: Aggregator = None, session: Session = None, output: Output = Format.TABLE
) -> None:
    """When the sum over all ranks was highest.

    With each rank's share at that instant, on aligned clocks.
    """
    from rankmem_cli import columns
    from rankmem_cli.patience import patience
    from rankmem_cli.render import show
    from rankmem_cli.target import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = queries.job_peak(facts.session_id)
        show(rows, columns.job_peak(facts.started_ns), output=output, title=facts.title())
