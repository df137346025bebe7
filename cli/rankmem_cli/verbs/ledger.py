"""``rankmem ledger``: what holds a device's memory, seen from outside."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format


@options.reads
def ledger(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show what holds a device's memory: PyTorch, communicators, runtime, others.

    Explains what nvidia-smi shows: what is used on the fullest device, or on that of --rank, as a sum of
    PyTorch's allocators, communicators, runtimes, what is left of each process, and other processes. Each
    part is measured, derived or unknown. Exit code 2: cannot tell, with the reason.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    tell(
        source,
        session,
        lambda queries, facts: queries.ledger(facts.session_id, rank=rank),
        lambda answer: columns.ledger(),
        output=output,
        fail_on=fail_on,
    )
