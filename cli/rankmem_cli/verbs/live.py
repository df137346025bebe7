"""``rankmem live``: the blocks alive at an instant."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rankmem_cli.args import options
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 40
"""Default limit of a table: the largest matter. JSON and CSV contain all rows."""

OfRank = Annotated[int, typer.Option("--rank", metavar="R", min=0, help="The rank to show.")]
At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="peak|TIME",
        help="The rank's own peak, or an instant: 12.5s (after the start), 2026-11-21T12:38:22.5 (UTC), or "
        "nanoseconds.",
    ),
]


@options.reads
def live(
    rank: OfRank,
    source: options.Target,
    session: options.Session = None,
    at: At = "peak",
    attempt: options.Attempt = None,
    device: options.OfDevice = None,
    limit: options.Limit = None,
    output: options.Output = Format.TABLE,
) -> None:
    """List the blocks of a rank that were alive at an instant.

    Largest first; JSON includes the whole stack of each block.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer
    from rankmem_cli.show.session import instant

    answer(
        source,
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
