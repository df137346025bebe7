"""``rankmem import``: recordings of other tools, as sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmem_cli.args import options

Db = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Database to import into.  [env: RANKMEM_DB; default: rankmem.duckdb]"
    ),
]
Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH", help="Files, folders or patterns; the format is detected from the content."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the session.  [default: derived from the files]"),
]
RankFrom = Annotated[
    str | None,
    typer.Option(
        "--rank-from",
        metavar="PATTERN",
        help=r"Regular expression whose group matches the rank in each path, such as 'rank(\d+)'.  "
        "[default: from the file, else from its path, else its position among the files]",
    ),
]
Into = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help="Add the ranks to this session.  [default: derived from their content]",
    ),
]


def import_(
    paths: Paths,
    name: Name = None,
    rank_from: RankFrom = None,
    db: Db = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    session: Into = None,
) -> None:
    """Import recordings of other tools as sessions.

    Reads PyTorch's memory snapshots, traces and memory timelines, MindStudio, nvprof, Nsight Systems and
    TensorFlow. Recordings become one session if there is evidence that they belong together: their paths
    differ only in the rank, or they name the same job or cover the same time. Nothing is stored twice. If a
    file is broken, nothing of it is stored, and the other files are still imported.
    """
    from rankmem_cli.run.importing import Request, import_recordings

    request = Request(paths=paths, name=name, session=session, rank_from=rank_from)
    report = import_recordings(request, options.target(db, aggregator, tls_ca, tls_cert, tls_key, token_file))
    for session_id in report.session_ids:
        print(session_id)
    if report.failed:
        raise typer.Exit(1)
