"""``rankmem imbalance``: why ranks differ, and which stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from rankmem_cli.args import options
from rankmem_cli.args.groupings import by_option
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format
from rankmem_protos.groupings import words_of

if TYPE_CHECKING:
    from rankmem_aggregator.query.types import BlockBy

Grouping = Annotated[
    str, by_option("imbalance", f"What a difference is made up of: {words_of('imbalance')}.")
]


@options.reads
def imbalance(
    source: options.Target,
    session: options.Session = None,
    by: Grouping = "category",
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show why ranks differ in memory, and which of them stand out from their peers.

    Compares each rank at its own peak with the ranks that share its parallel coordinates, or a layout
    inferred from the bytes. What a rank holds more than a peer adds up to the byte. Needs eight ranks.
    Exit code 2: cannot tell, with the reason.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    tell(
        source,
        session,
        lambda queries, facts: queries.imbalance(facts.session_id, by=cast("BlockBy", by)),
        lambda answer: columns.imbalance(),
        output=output,
        fail_on=fail_on,
    )
