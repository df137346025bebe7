"""``rankmem ledger``: what holds a device's memory, seen from outside."""

from __future__ import annotations

from typing import Annotated

import typer

from rankmem_cli.args import options
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format

OverTime = Annotated[
    int | None,
    typer.Option(
        "--over-time",
        metavar="N",
        min=2,
        max=1000,
        help="Show it at N instants, from the first sample of the device to the last.",
    ),
]


@options.reads
def ledger(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    over_time: OverTime = None,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show what holds a device's memory: PyTorch, communicators, runtime, others.

    Explains what nvidia-smi shows: what is used on the fullest device, or on that of --rank, as a sum of
    PyTorch's allocators, communicators, runtimes, what is left of each process, and other processes. Each
    part is measured, derived or unknown. With --over-time it is the same sum at many instants, in the table
    of all processes together. Exit code 2: cannot tell, with the reason.
    """
    from rankmem_aggregator.insights.ledger import by_instant
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    tell(
        source,
        session,
        lambda queries, facts: queries.ledger(facts.session_id, rank=rank, num_instants=over_time or 0),
        lambda answer: columns.ledger() if over_time is None else columns.ledger_over_time(),
        output=output,
        fail_on=fail_on,
        table=by_instant if over_time else None,
    )
