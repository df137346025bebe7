"""``rankmem status``: is everything arriving."""

from __future__ import annotations

from rankmem_cli.args.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.show.render import Format


def status(
    db: ReadDb = None, aggregator: Aggregator = None, session: Session = None, output: Output = Format.TABLE
) -> None:
    """Each rank's lag and losses now, and how the aggregator is."""
    from rankmem_cli.run.drain import session_dirs_here
    from rankmem_cli.show import columns
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.session import open_queries, session_facts
    from rankmem_cli.show.status import aggregator_lines, set_aside_lines, shipper_line

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with show_progress("asking"):
            rows = queries.status(facts.session_id)
            here = session_dirs_here(facts.session_id)
            notes = [*aggregator_lines(queries.aggregator_state()), *shipper_line(here)]
            notes += set_aside_lines(here)
        show_answer(queries, facts, rows, columns.status(), output=output, notes=notes)
