"""``rankmem sessions``: the stored sessions."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


def sessions(
    db: options.ReadDb = None,
    lake: options.Lake = None,
    engine: options.Engine = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    output: options.Output = Format.TABLE,
) -> None:
    """List the stored sessions, newest first."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.completeness import note_incomplete_sessions
    from rankmem_cli.show.render import show
    from rankmem_cli.show.session import open_queries

    with open_queries(
        options.source(db, lake, aggregator, tls_ca, tls_cert, tls_key, token_file, engine)
    ) as queries:
        show(queries.sessions(), columns.sessions(), output=output)
        note_incomplete_sessions(queries)
