"""``rankmem certs``: a private CA, certificates and tokens for a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; existing files are kept.")]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="HOST",
        help="Name or address that clients use to reach the aggregator; may be repeated. This host's own "
        "names and the loopback address are always included.",
    ),
]
Days = Annotated[
    int,
    typer.Option(
        "--days", metavar="N", min=1, max=3650, help="Validity of certificates in days; the CA's is 3650."
    ),
]


def certs(folder: Folder, names: Names = None, days: Days = 365) -> None:
    """Create a private CA, certificates and tokens for a cluster.

    To renew a certificate with the same CA, remove it and its key and run the command again.
    """
    from rankmem_aggregator.server.certs import make
    from rankmem_cli.show.render import note

    made = make(folder, names or (), days)
    for path in made.kept:
        note(f"kept {path}")
    for path in made.files:
        note(f"wrote {path}")
    there = shlex.quote(str(folder))
    note(
        f"rankmem: on the aggregator: rankmem serve --listen HOST:PORT --tls-cert {there}/aggregator.pem "
        f"--tls-key {there}/aggregator.key --ingest-token-file {there}/ingest.token "
        f"--query-token-file {there}/query.token"
    )
    note(f"rankmem: elsewhere: --tls-ca {there}/ca.pem --token-file {there}/ingest.token (or query.token)")
