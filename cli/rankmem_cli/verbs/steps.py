"""``rankmem steps``: the memory of each training step, and its growth from step to step."""

from __future__ import annotations

from typing import Final

from rankmem_cli.args import options
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 60
"""Default limit of a table. JSON and CSV contain all rows."""
NO_STEPS: Final = (
    "no steps: no optimizer stepped and rankmem_agent.step() was not called (for inference, call it after "
    "each batch)"
)


@options.reads
def steps(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    limit: options.Limit = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show the peak and the allocated bytes of each training step.

    Also shows the growth from step to step: with a leak, every step leaves more behind than the one before.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        source,
        session,
        lambda queries, facts: queries.steps(facts.session_id, rank=rank),
        lambda facts: columns.steps(facts.started_ns),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        without_rows=NO_STEPS,
    )
