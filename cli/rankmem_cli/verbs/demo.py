"""``rankmem demo``: a real training, and the answers."""

from __future__ import annotations

from typing import Annotated

import typer

from rankmem_cli.args import options

Ranks = Annotated[
    int, typer.Option("--ranks", metavar="N", min=1, max=64, help="Number of worker processes.")
]
Steps = Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Number of optimizer steps.")]


def demo(ranks: Ranks = 2, steps: Steps = 20, db: options.RecordDb = None) -> None:
    """Train a small GPT, record it and show the answers."""
    from rankmem_cli.run.demo_answers import print_answers
    from rankmem_cli.run.demo_command import SCRIPT, demo_command, demo_environment
    from rankmem_cli.run.job import Job, run_job

    job = Job(
        command=demo_command(ranks=ranks, steps=steps),
        target=options.target(db),
        name="demo",
        environment=demo_environment(),
        folder=SCRIPT.parent,  # so that the script's lines count as the project's, not as a library's
    )
    raise typer.Exit(run_job(job, print_answers))
