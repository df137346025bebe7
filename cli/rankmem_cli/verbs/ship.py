"""``rankmem ship``: deliver what a job left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Folder of a session's spools, or of many sessions.", exists=True),
]
To = Annotated[
    str | None,
    typer.Option(
        "--aggregator", metavar="HOST:PORT", help="Deliver there.  [default: where the job meant to]"
    ),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", metavar="SECONDS", min=0, help="Longest time for each session.")
]
Db = Annotated[Path | None, typer.Option("--db", metavar="FILE", help="Deliver into this database.")]


def ship(folder: Folder, aggregator: To = None, db: Db = None, timeout_s: TimeoutS = 300.0) -> None:
    """Delivers what a job left in its spools.

    Its aggregator was away, or its host was killed too quickly; nothing is stored twice.
    """
    from rankmem_cli.run.delivery import deliver_folder

    deliver_folder(folder, aggregator=aggregator, db=db, timeout_s=timeout_s)
