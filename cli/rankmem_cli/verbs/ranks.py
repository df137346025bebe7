"""``rankmem ranks``: whether every rank reported, and whether anything is missing."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


@options.reads
def ranks(
    source: options.Target,
    session: options.Session = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show where each rank ran, and if its recording is complete."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        source,
        session,
        lambda queries, facts: queries.ranks(facts.session_id),
        lambda facts: columns.ranks(facts.started_ns),
        output=output,
    )
