"""``rankmem run``: record a training run."""

from __future__ import annotations

import enum
import functools
from pathlib import Path
from typing import Annotated

import typer

from rankmem_cli.args import options


class Detail(enum.StrEnum):
    """The values of RANKMEM_DETAIL."""

    FULL = "full"
    OPERATORS = "operators"
    EVENTS = "events"
    AUTO = "auto"


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
        help="Session ID: the same on all hosts of the job, and different for every job.  [env: "
        "RANKMEM_SESSION; default: Slurm's job or torchrun's --rdzv-id, else a new one]",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the session.  [default: the script's name]"),
]
SpoolDir = Annotated[
    Path | None,
    typer.Option(
        "--spool-dir",
        metavar="DIR",
        help="Folder for events waiting to be shipped, in this host's memory or on its disk.  [env: "
        "RANKMEM_SPOOL_DIR; default: /dev/shm if it has room, else $TMPDIR]",
    ),
]
DrainS = Annotated[
    float | None,
    typer.Option(
        "--drain-s",
        metavar="SECONDS",
        min=0,
        help="Maximum wait for the last acknowledgement.  [default: 120]",
    ),
]
OfDetail = Annotated[
    Detail | None,
    typer.Option(
        "--detail",
        help="What to record: everything; operators without stacks and modules; only events and samples, "
        "at next to no cost; or everything of some steps, so that one as high as the peak is among them.  "
        "[env: RANKMEM_DETAIL; default: full]",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no summary at the end.")]
Finds = Annotated[
    bool,
    typer.Option(
        "--diagnose/--no-diagnose",
        help="End the summary with the first finding of `rankmem diagnose`, looked for within 5 seconds.",
    ),
]
Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The training command, as you would start it.")
]


def run(
    command: Command,
    db: options.RecordDb = None,
    aggregator: To = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    session: SessionId = None,
    name: Name = None,
    spool_dir: SpoolDir = None,
    drain_s: DrainS = None,
    detail: OfDetail = None,
    quiet: Quiet = False,
    finds: Finds = True,
) -> None:
    """Record a training run.

    rankmem run -- torchrun --nproc-per-node 4 train.py --lr 1e-3

    The training's output, signals and exit code are unaffected; a summary follows on stderr.
    """
    from rankmem_cli.run.job import DRAIN_S_DEFAULT, Job, report_nothing, report_summary, run_job

    job = Job(
        command=tuple(command),
        target=options.target(db, aggregator, tls_ca, tls_cert, tls_key, token_file),
        session=session,
        name=name,
        spool_dir=spool_dir,
        drain_s=DRAIN_S_DEFAULT if drain_s is None else drain_s,
        environment={} if detail is None else {"RANKMEM_DETAIL": detail.value},
    )
    report = report_nothing if quiet else functools.partial(report_summary, finds=finds)
    raise typer.Exit(run_job(job, report, is_last=True))
