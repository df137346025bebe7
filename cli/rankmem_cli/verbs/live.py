"""``rankmem live``: which blocks were alive."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rankmem_cli.options import Aggregator, Limit, Output, ReadDb, Session
from rankmem_cli.render import Format

TABLE_ROWS: Final = 40
"""Rows of a table unless --limit says more: the largest tell most; JSON and CSV carry all."""

OfRank = Annotated[int, typer.Option("--rank", metavar="R", min=0, help="Which rank.")]
At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="peak|TIME",
        help="The rank's own peak, or an instant: 12.5s (after the start), 2026-11-21T12:38:22.5 (UTC), or "
        "nanoseconds.",
    ),
]


def live(
    rank: OfRank,
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    at: At = "peak",
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """The blocks of a rank alive at an instant.

    The largest first; JSON has the whole stack of each.
    """
    from rankmem_cli import columns
    from rankmem_cli.patience import patience
    from rankmem_cli.render import head, show
    from rankmem_cli.target import instant, open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            rows = queries.live(rank, facts.session_id, at="peak" if at == "peak" else instant(at, facts))
        rows = head(rows, limit, output=output, table_rows=TABLE_ROWS)
        show(rows, columns.live(facts.started_ns), output=output, title=facts.title())
