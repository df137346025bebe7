"""``rankmem sessions``: the stored sessions."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


@options.reads
def sessions(
    source: options.Target,
    output: options.Output = Format.TABLE,
) -> None:
    """List the stored sessions, newest first."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.completeness import note_incomplete_sessions, note_stale
    from rankmem_cli.show.render import show
    from rankmem_cli.show.session import open_queries

    with open_queries(source) as queries:
        show(queries.sessions(), columns.sessions(), output=output)
        note_stale(queries)
        note_incomplete_sessions(queries)
