"""``rankmem leaks``: what leaks, at which line, and when the device will be full."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format


@options.reads
def leaks(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show which lines hold ever more memory after each step.

    Judges what each line's blocks hold after each step. Distinguishes leaks from caches that have filled, and
    estimates when the device will be out of memory. Needs ten steps; below sixty a leak is only suspected.
    Exit code 2: cannot tell, with the reason.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    tell(
        source,
        session,
        lambda queries, facts: queries.leaks(facts.session_id, rank=rank),
        lambda answer: columns.leaks(),
        output=output,
        fail_on=fail_on,
    )
