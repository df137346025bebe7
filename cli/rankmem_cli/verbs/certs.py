"""``rankmem certs``: a private CA, certificates and tokens for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; what is there is kept.")]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="HOST",
        help="A name or address by which clients reach the aggregator; may be repeated. This host's own "
        "names and loopback are always among them.",
    ),
]
Days = Annotated[
    int,
    typer.Option("--days", metavar="N", min=1, max=3650, help="How long certificates hold; the CA: 3650."),
]


def certs(folder: Folder, names: Names = None, days: Days = 365) -> None:
    """Makes a private CA, certificates and tokens for a cluster.

    Remove a pair and run it again to have it made anew by the same CA.
    """
    from rankmem_aggregator.server.certs import make
    from rankmem_cli.show.render import note

    made = make(folder, names or (), days)
    for path in made.kept:
        note(f"kept {path}")
    for path in made.files:
        note(f"wrote {path}")
    note(
        f"rankmem: on the aggregator: rankmem serve --listen HOST:PORT --tls-cert {folder}/aggregator.pem "
        f"--tls-key {folder}/aggregator.key --ingest-token-file {folder}/ingest.token "
        f"--query-token-file {folder}/query.token"
    )
    note(f"rankmem: elsewhere: --tls-ca {folder}/ca.pem --token-file {folder}/ingest.token (or query.token)")
