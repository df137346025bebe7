"""``rankmem import``: what others recorded, as sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmem_cli.args.options import Aggregator

Db = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Database to import into.  [env: RANKMEM_DB; default: rankmem.duckdb]"
    ),
]
Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Files, folders or patterns; the kind is told by the content."),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the session.  [default: of the files]")
]
RankFrom = Annotated[
    str | None,
    typer.Option(
        "--rank-from",
        metavar="PATTERN",
        help=r"Regular expression whose group is the rank in each path, such as 'rank(\d+)'.  "
        "[default: what the file says, else its path, else its place among the files]",
    ),
]
Into = Annotated[
    str | None,
    typer.Option(
        "--session", metavar="ID", help="Put the ranks into this session.  [default: by their content]"
    ),
]


def import_(
    paths: Paths,
    name: Name = None,
    rank_from: RankFrom = None,
    db: Db = None,
    aggregator: Aggregator = None,
    session: Into = None,
) -> None:
    """Stores recordings of other tools as sessions.

    PyTorch's memory snapshots, traces and memory timelines, MindStudio, nvprof, Nsight Systems, TensorFlow.
    Recordings become one session where something says that they belong together: paths that differ in the
    rank, the job that they name, the same time. What is there already is not stored twice; of a file that
    is broken nothing is stored, and the others go on.
    """
    from rankmem_cli.args.options import place
    from rankmem_cli.run.importing import Request, import_recordings

    request = Request(paths=paths, name=name, session=session, rank_from=rank_from)
    report = import_recordings(request, place(db, aggregator))
    for session_id in report.session_ids:
        print(session_id)
    if report.failed:
        raise typer.Exit(1)
