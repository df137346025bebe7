"""``rankmem steps``: what each training step took, and what memory gains from step to step."""

from __future__ import annotations

from typing import Final

from rankmem_cli.args.options import Aggregator, Limit, Output, Rank, ReadDb, Session
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 60
"""Rows of a table unless --limit says more; JSON and CSV carry all."""
NO_STEPS: Final = (
    "no optimizer stepped and rankmem_agent.step() was not called, so there are no steps (of an inference: "
    "call it after each batch)"
)


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
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        db,
        aggregator,
        session,
        lambda queries, facts: queries.steps(facts.session_id, rank=rank),
        lambda facts: columns.steps(facts.started_ns),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        without_rows=NO_STEPS,
    )
