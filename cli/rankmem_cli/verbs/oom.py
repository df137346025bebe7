"""``rankmem oom``: why did it run out of memory."""

from __future__ import annotations

from rankmem_cli.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.render import Format


def oom(
    db: ReadDb = None, aggregator: Aggregator = None, session: Session = None, output: Output = Format.TABLE
) -> None:
    """Allocations that failed, and what was alive then.

    What was asked for and by whom, what was free and in how large a piece; of the last one what its rank held
    by category, operator and line, and what every other rank held at the same instant.
    """
    from rankmem_cli.oom_view import print_oom
    from rankmem_cli.patience import patience
    from rankmem_cli.render import show
    from rankmem_cli.target import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = queries.oom(facts.session_id)
        if output is Format.TABLE:
            print_oom(queries, facts, rows)
        else:
            show(rows, [], output=output)
