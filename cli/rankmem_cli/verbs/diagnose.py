"""``rankmem diagnose``: all insights at once, ranked by what they would save."""

from __future__ import annotations

from rankmem_cli.args import options
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format


@options.reads
def diagnose(
    source: options.Target,
    session: options.Session = None,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show what all insights find, by the bytes that the peak would lose.

    Asks for failed allocations, an early peak, leaks, the ledger, imbalance, remedies that cost nothing
    (whatif) and fragmentation, and shows at most eight findings, each with the peak as it would be then, how
    certain that is, and its own command. Insights that cannot tell are named with the reason. Exit code 2:
    nothing is found, and most of them cannot tell.
    """
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    tell(
        source,
        session,
        lambda queries, facts: queries.diagnose(facts.session_id),
        lambda answer: columns.diagnose(
            with_least=any(row["is_lower_bound"] for row in answer.rows.to_pylist())
        ),
        output=output,
        fail_on=fail_on,
    )
