"""``rankmem sessions``: which jobs are stored."""

from __future__ import annotations

from rankmem_cli.args.options import Aggregator, Output, ReadDb
from rankmem_cli.show.render import Format


def sessions(db: ReadDb = None, aggregator: Aggregator = None, output: Output = Format.TABLE) -> None:
    """Which jobs are stored, the newest first."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.completeness import note_incomplete_sessions
    from rankmem_cli.show.render import show
    from rankmem_cli.show.session import open_queries

    with open_queries(db, aggregator) as queries:
        show(queries.sessions(), columns.sessions(), output=output)
        note_incomplete_sessions(queries)
