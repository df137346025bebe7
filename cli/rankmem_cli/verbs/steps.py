"""``rankmem steps``: what each training step took, and what memory gains from step to step."""

from __future__ import annotations

from typing import Final

from rankmem_cli.options import Aggregator, Limit, Output, Rank, ReadDb, Session
from rankmem_cli.render import Format

TABLE_ROWS: Final = 60
"""Rows of a table unless --limit says more; JSON and CSV carry all."""


def steps(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    rank: Rank = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """Peak and allocated bytes of each training step.

    With the growth from step to step: what a step leaves behind more than the one before, a leak does again
    and again.
    """
    from rankmem_cli import columns
    from rankmem_cli.patience import patience
    from rankmem_cli.render import head, show
    from rankmem_cli.target import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = queries.steps(facts.session_id, rank=rank)
        rows = head(rows, limit, output=output, table_rows=TABLE_ROWS)
        show(rows, columns.steps(facts.started_ns), output=output, title=facts.title())
