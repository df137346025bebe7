"""``rankmem run``: record a training."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class Detail(enum.StrEnum):
    """As RANKMEM_DETAIL."""

    FULL = "full"
    OPERATORS = "operators"
    EVENTS = "events"


RecordDb = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Database to record into.  [env: RANKMEM_DB; default: rankmem.duckdb]"
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--aggregator",
        metavar="HOST:PORT",
        help="Record into this running aggregator.  [env: RANKMEM_AGGREGATOR]",
    ),
]
SessionId = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help="What the hosts of one job call it, the same on each and another for every job.  [env: "
        "RANKMEM_SESSION; default: Slurm's job or torchrun's --rdzv-id, else new]",
    ),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the session.  [default: the script's]")
]
SpoolDir = Annotated[
    Path | None,
    typer.Option(
        "--spool-dir",
        metavar="DIR",
        help="Where events wait to be shipped, in this host's own memory or disk.  [env: RANKMEM_SPOOL_DIR; "
        "default: /dev/shm where it has room, else $TMPDIR]",
    ),
]
DrainS = Annotated[
    float | None,
    typer.Option(
        "--drain-s",
        metavar="SECONDS",
        min=0,
        help="Longest wait for the last acknowledgement.  [default: 120]",
    ),
]
OfDetail = Annotated[
    Detail | None,
    typer.Option(
        "--detail",
        help="What is recorded: everything; operators without stacks and modules; or events and samples "
        "alone, at next to no cost.  [env: RANKMEM_DETAIL; default: full]",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No summary at the end.")]
Command = Annotated[list[str], typer.Argument(metavar="COMMAND", help="The training, as you would start it.")]


def run(
    command: Command,
    db: RecordDb = None,
    aggregator: To = None,
    session: SessionId = None,
    name: Name = None,
    spool_dir: SpoolDir = None,
    drain_s: DrainS = None,
    detail: OfDetail = None,
    quiet: Quiet = False,
) -> None:
    """Records a training.

    rankmem run -- torchrun --nproc-per-node 4 train.py --lr 1e-3

    The training keeps its output, signals and exit code; a summary follows on stderr.
    """
    from rankmem_cli.args.options import place
    from rankmem_cli.run.job import DRAIN_S_DEFAULT, Job, report_nothing, report_summary, run_job

    job = Job(
        command=tuple(command),
        place=place(db, aggregator),
        session=session,
        name=name,
        spool_dir=spool_dir,
        drain_s=DRAIN_S_DEFAULT if drain_s is None else drain_s,
        environment={} if detail is None else {"RANKMEM_DETAIL": detail.value},
    )
    raise typer.Exit(run_job(job, report_nothing if quiet else report_summary))
