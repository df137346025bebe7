"""``rankmem weights``: the parameters of the model."""

from __future__ import annotations

from typing import Final

from rankmem_cli.args import options
from rankmem_cli.show.render import Format

TABLE_ROWS: Final = 40
"""Default limit of a table: the largest matter. JSON and CSV contain all rows."""


@options.reads
def weights(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    limit: options.Limit = None,
    output: options.Output = Format.TABLE,
) -> None:
    """List the model's parameters and their gradients.

    For each rank, largest first, with the source line that created each parameter.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.one_question import answer

    answer(
        source,
        session,
        lambda queries, facts: queries.weights(facts.session_id, rank=rank),
        lambda facts: columns.weights(),
        output=output,
        limit=limit,
        table_rows=TABLE_ROWS,
        needs=("modules", "stacks"),
    )
