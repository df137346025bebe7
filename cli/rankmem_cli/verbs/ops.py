"""``rankmem ops``: which operators, modules, source lines, categories … held the memory."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from rankmem_cli.args.options import Aggregator, Limit, OfDevice, Output, Rank, ReadDb, Session
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 20
"""Rows of a table unless --limit says more: the head tells who; JSON and CSV carry all."""


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
        help="Alive at each rank's own peak; the same by bytes allocated in all; or alive at an instant: "
        "12.5s (after the start), 2026-11-21T12:38:22.5 (UTC), or nanoseconds.",
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
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    at: At = "peak",
    by: Grouping = By.OPERATOR,
    rank: Rank = None,
    device: OfDevice = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """Which operators, lines, modules … held the memory.

    The largest first, with what each allocated in all.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer
    from rankmem_cli.show.session import moment

    answer(
        db,
        aggregator,
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
