"""``rankmem whatif``: what remedies would save, each with the peak recomputed."""

from __future__ import annotations

from typing import Annotated

import typer

from rankmem_cli.args import options
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format


@options.reads
def whatif(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    fit: Annotated[
        str | None,
        typer.Option(
            "--fit", metavar="SIZE", help="Find the fewest remedies that fit a device of this size."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", metavar="N", min=2, help="Shard over so many ranks.  [default: the job's, or 8]"
        ),
    ] = None,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show what remedies would save of a step's peak.

    Edits the lives of the blocks of a steady step as checkpointing, sharding, offloading, chunks of the
    loss and others would, and recomputes the peak. Remedies that were not held against a training with the
    change are marked, and suspected.
    Exit code 2: cannot tell, with the reason: no steady step.
    """
    from rankmem_cli.args.sizes import parse_size
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    tell(
        source,
        session,
        lambda queries, facts: queries.whatif(
            facts.session_id, fit_bytes=None if fit is None else parse_size(fit), ranks=ranks, rank=rank
        ),
        lambda answer: columns.whatif(
            with_least=any(
                row["peak_after_least_bytes"] < row["peak_after_bytes"] for row in answer.rows.to_pylist()
            )
        ),
        output=output,
        fail_on=fail_on,
    )
