"""``rankmem status``: whether everything arrives."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


def status(
    db: options.ReadDb = None,
    lake: options.Lake = None,
    engine: options.Engine = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
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

    target = options.source(db, lake, aggregator, tls_ca, tls_cert, tls_key, token_file, engine)
    with open_session(target, session) as (queries, facts):
        with show_progress("querying"):
            rows = queries.status(facts.session_id)
            here = session_dirs_here(facts.session_id)
            notes = [*aggregator_lines(queries.aggregator_state()), *shipper_line(here)]
            notes += set_aside_lines(here)
        show_answer(queries, facts, rows, columns.status(), output=output, notes=notes)
