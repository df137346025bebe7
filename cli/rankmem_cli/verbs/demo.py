"""``rankmem demo``: a real training, and the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Ranks = Annotated[int, typer.Option("--ranks", metavar="N", min=1, max=64, help="Worker processes.")]
Steps = Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Optimizer steps.")]
Db = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Database to record into.  [env: RANKMEM_DB; default: rankmem.duckdb]"
    ),
]


def demo(ranks: Ranks = 2, steps: Steps = 20, db: Db = None) -> None:
    """Trains a small GPT, records it, shows the answers."""
    from rankmem_cli.args.options import place
    from rankmem_cli.run.demo_answers import print_answers
    from rankmem_cli.run.demo_command import SCRIPT, demo_command, demo_environment
    from rankmem_cli.run.job import Job, run_job

    job = Job(
        command=demo_command(ranks=ranks, steps=steps),
        place=place(db, None),
        name="demo",
        environment=demo_environment(),
        folder=SCRIPT.parent,  # lines of the script are told as lines of a project, not of a library
    )
    raise typer.Exit(run_job(job, print_answers))
