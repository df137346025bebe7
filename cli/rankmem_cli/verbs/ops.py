"""``rankmem ops``: which operators, modules, source lines, categories … held the memory."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from rankmem_cli.args import options
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 20
"""Default limit of a table: the largest matter. JSON and CSV contain all rows."""


class By(enum.StrEnum):
    """What a row stands for."""

    OPERATOR = "operator"
    MODULE = "module"
    LINE = "line"
    CATEGORY = "category"
    PHASE = "phase"
    STEP = "step"
    ANNOTATION = "annotation"
    STREAM = "stream"
    COMPONENT = "component"
    RANK = "rank"


NEEDS: Final = {
    By.OPERATOR: ("operators",),
    By.MODULE: ("modules",),
    By.LINE: ("stacks",),
    By.CATEGORY: ("operators",),
    By.PHASE: ("operators",),
    By.ANNOTATION: ("operators",),
    By.RANK: ("operators",),
}
"""What a grouping rests on."""

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
    By,
    typer.Option(
        "--by",
        help="Operator, module, line of the source, meaning of the bytes, phase, training step, the user's "
        "annotation, stream, component; or operator of each rank.",
    ),
]


def ops(
    db: options.ReadDb = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    session: options.Session = None,
    at: At = "peak",
    by: Grouping = By.OPERATOR,
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
        options.target(db, aggregator, tls_ca, tls_cert, tls_key, token_file),
        session,
        lambda queries, facts: queries.ops(
            facts.session_id, by=by.value, at=moment(at, facts), rank=rank, device=device
        ),
        lambda facts: columns.ops(),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        needs=NEEDS.get(by, ()),
    )
