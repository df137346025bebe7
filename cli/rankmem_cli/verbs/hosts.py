"""``rankmem hosts``: the machines of a job."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


@options.reads
def hosts(
    source: options.Target,
    session: options.Session = None,
    output: options.Output = Format.TABLE,
) -> None:
    """List a job's hosts and their highest peaks."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        source,
        session,
        lambda queries, facts: queries.hosts(facts.session_id),
        lambda facts: columns.hosts(),
        output=output,
    )
