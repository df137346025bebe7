"""``rankmem export``: a session or a database out of rankmem."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmem_cli.credential_options import with_credentials
from rankmem_cli.options import Aggregator, ReadDb

export = typer.Typer(
    help="Copies of the database, also while it is written.", no_args_is_help=True, rich_markup_mode=None
)

Out = Annotated[Path, typer.Argument(metavar="OUT", help="File to write; must not exist.")]


@export.callback()
def _only_subcommands() -> None:
    """Copies of the database, also while it is written."""


@export.command()
@with_credentials
def duckdb(out: Out, db: ReadDb = None, aggregator: Aggregator = None) -> None:
    """Writes a consistent copy of the database."""
    from rankmem_cli.patience import patience
    from rankmem_cli.render import note
    from rankmem_cli.target import open_queries

    with open_queries(db, aggregator) as queries, patience(f"copying to {out}"):
        queries.copy_to(out)
    note(f"wrote {out}")
