"""``rankmem ranks``: did all ranks come, and is anything missing."""

from __future__ import annotations

from rankmem_cli.args.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.show.render import Format


def ranks(
    db: ReadDb = None, aggregator: Aggregator = None, session: Session = None, output: Output = Format.TABLE
) -> None:
    """Where the ranks ran, and whether all of it is there."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        db,
        aggregator,
        session,
        lambda queries, facts: queries.ranks(facts.session_id),
        lambda facts: columns.ranks(facts.started_ns),
        output=output,
    )
