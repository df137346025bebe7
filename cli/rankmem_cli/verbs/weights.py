"""``rankmem weights``: the parameters of the model."""

from __future__ import annotations

from typing import Final

from rankmem_cli.args.options import Aggregator, Limit, Output, Rank, ReadDb, Session
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 40
"""Rows of a table unless --limit says more: the largest tell most; JSON and CSV carry all."""


def weights(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    rank: Rank = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """The model's parameters and their gradients.

    Each rank's own, the largest first, with the line that made each.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        db,
        aggregator,
        session,
        lambda queries, facts: queries.weights(facts.session_id, rank=rank),
        lambda facts: columns.weights(),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        needs=("modules", "stacks"),
    )
