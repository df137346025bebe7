"""``rankmem hosts``: the machines of a job."""

from __future__ import annotations

from rankmem_cli.args.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.show.render import Format


def hosts(
    db: ReadDb = None, aggregator: Aggregator = None, session: Session = None, output: Output = Format.TABLE
) -> None:
    """The hosts of a job and their highest peaks."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        db,
        aggregator,
        session,
        lambda queries, facts: queries.hosts(facts.session_id),
        lambda facts: columns.hosts(),
        output=output,
    )
