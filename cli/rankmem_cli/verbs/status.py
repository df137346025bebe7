"""``rankmem status``: whether everything arrives."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


@options.reads
def status(
    source: options.Target,
    session: options.Session = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show each rank's lag and losses, and the aggregator's state."""
    from rankmem_agent.spool.folder import session_dirs_here
    from rankmem_cli.show import columns
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.session import open_session
    from rankmem_cli.show.status import aggregator_lines, set_aside_lines, shipper_line
    from rankmem_cli.show.steady import steady_lines

    with open_session(source, session) as (queries, facts):
        with show_progress("querying"):
            rows = queries.status(facts.session_id)
            here = session_dirs_here(facts.session_id)
            notes = [*aggregator_lines(queries.aggregator_state(), queries.target), *shipper_line(here)]
            notes += [*set_aside_lines(here), *steady_lines(rows)]
        show_answer(queries, facts, rows, columns.status(), output=output, notes=notes)
