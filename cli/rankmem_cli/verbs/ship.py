"""``rankmem ship``: deliver what a job left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmem_cli.args import options
from rankmem_protos.credentials import Credentials

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="Folder with the spools of one session, or of many sessions.", exists=True
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--aggregator",
        metavar="HOST:PORT",
        help="Deliver to this aggregator.  [default: the one that the job was given]",
    ),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", metavar="SECONDS", min=0, help="Maximum time for each session.")
]
Db = Annotated[Path | None, typer.Option("--db", metavar="FILE", help="Deliver into this database.")]


def ship(
    folder: Folder,
    aggregator: To = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    db: Db = None,
    timeout_s: TimeoutS = 300.0,
) -> None:
    """Deliver the records that a job left on disk.

    Use it when the aggregator was unreachable or the host was killed too soon. Nothing is stored twice.
    """
    from rankmem_cli.run.delivery import deliver_folder

    credentials = Credentials.from_environment(
        tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file
    )
    deliver_folder(folder, aggregator=aggregator, db=db, credentials=credentials, timeout_s=timeout_s)
