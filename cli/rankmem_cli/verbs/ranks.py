"""``rankmem ranks``: whether every rank reported, and whether anything is missing."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


def ranks(
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
    """Show where each rank ran, and if its recording is complete."""
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        options.source(db, lake, aggregator, tls_ca, tls_cert, tls_key, token_file, engine),
        session,
        lambda queries, facts: queries.ranks(facts.session_id),
        lambda facts: columns.ranks(facts.started_ns),
        output=output,
    )
