"""``rankmem live``: which blocks were alive."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rankmem_cli.args.options import Aggregator, Attempt, Limit, OfDevice, Output, ReadDb, Session
from rankmem_cli.show.render import Format

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
    attempt: Attempt = None,
    device: OfDevice = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """The blocks of a rank alive at an instant.

    The largest first; JSON has the whole stack of each.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer
    from rankmem_cli.show.session import instant

    answer(
        db,
        aggregator,
        session,
        lambda queries, facts: queries.live(
            rank,
            facts.session_id,
            at="peak" if at == "peak" else instant(at, facts),
            attempt=attempt,
            device=device,
        ),
        lambda facts: columns.live(facts.started_ns),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        needs=("operators", "stacks"),
    )
