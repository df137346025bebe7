"""``rankmem ops``: which operators, modules, source lines, categories … held the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from rankmem_cli.args import options
from rankmem_cli.args.groupings import by_option
from rankmem_cli.show.render import Format
from rankmem_protos.groupings import GROUPINGS, words_of

if TYPE_CHECKING:
    from rankmem_aggregator.query.types import By

TABLE_ROWS: Final = 20
"""Default limit of a table: the largest matter. JSON and CSV contain all rows."""


At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="peak|total|TIME",
        help="Alive at each rank's own peak; the same, sorted by total bytes allocated; or alive at an "
        "instant: 12.5s (after the start), 2026-11-21T12:38:22.5 (UTC), or nanoseconds.",
    ),
]
Grouping = Annotated[
    str, by_option("ops", f"A row for each {words_of('ops')}; rank: for each operator of each rank.")
]


@options.reads
def ops(
    source: options.Target,
    session: options.Session = None,
    at: At = "peak",
    by: Grouping = "operator",
    rank: options.Rank = None,
    device: options.OfDevice = None,
    limit: options.Limit = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show which operators, lines, modules … held the memory.

    Largest first, with the total that each allocated.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer
    from rankmem_cli.show.session import moment

    answer(
        source,
        session,
        lambda queries, facts: queries.ops(
            facts.session_id, by=cast("By", by), at=moment(at, facts), rank=rank, device=device
        ),
        lambda facts: columns.ops(),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        needs=("operators",) if by == "rank" else GROUPINGS[by].needs,
    )
