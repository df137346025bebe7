"""The options that several verbs share, declared once.

Stage: arguments. In come the command line and the environment, out go plain values. Opens nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from rankmem_cli.args.credential_options import chosen_credentials
from rankmem_cli.show.render import Format
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

ReadDb = Annotated[
    Path | None,
    typer.Option(
        "--db",
        metavar="FILE",
        help="Database to read, also while it is written.  [env: RANKMEM_DB; default: rankmem.duckdb]",
    ),
]
Aggregator = Annotated[
    str | None,
    typer.Option(
        "--aggregator", metavar="HOST:PORT", help="A running aggregator.  [env: RANKMEM_AGGREGATOR]"
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help="Session: its id, the beginning of it, or its name.  [default: the newest]",
    ),
]
Output = Annotated[
    Format,
    typer.Option("--format", help="A table for people; json and csv carry plain bytes and nanoseconds."),
]
Attempt = Annotated[
    int | None,
    typer.Option("--attempt", metavar="N", min=0, help="This start of the workers, from 0."),
]
Rank = Annotated[int | None, typer.Option("--rank", metavar="R", min=0, help="This rank alone.")]
OfDevice = Annotated[
    str | None, typer.Option("--device", metavar="D", help="This device alone, such as cuda:0.")
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=0, help="Rows at most; 0 for all."),
]


POINTS_DEFAULT: Final = 1_000_000
"""Points of a curve unless --points says less: all, short of recordings that would not fit in memory. The
parts of a stack must meet at the same instants, so thinning is left to what draws them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the rows are, or go to: a database file or a running aggregator, never both."""

    db: Path | None = None
    aggregator: str | None = None
    """HOST:PORT."""
    credentials: Credentials = field(default_factory=Credentials)
    """For the aggregator, also for one that holds the file."""

    def target(self) -> str:
        """What ``connect`` takes."""
        return self.aggregator if self.aggregator is not None else str(self.db)


def place(db: Path | None, aggregator: str | None) -> Target:
    """The place that flags and environment name: flag > environment > ``rankmem.duckdb`` here.

    A flag beats both variables, so that ``--db other.duckdb`` works in a shell that has
    RANKMEM_AGGREGATOR set.

    Raises:
        RankmemError: INVALID if both flags are given, or DuckDB cannot open such a path.
    """
    from rankmem_aggregator.config import target_from_environment

    target = target_from_environment(db, aggregator)
    if aggregator is not None or (db is None and target == os.environ.get("RANKMEM_AGGREGATOR")):
        return Target(aggregator=target, credentials=chosen_credentials())
    try:
        target.encode()
    except UnicodeEncodeError as exc:
        raise RankmemError(
            Code.INVALID,
            f"the database's path is not in UTF-8: {target!r}",
            "DuckDB opens no other: rename it",
        ) from exc
    return Target(db=Path(target), credentials=chosen_credentials())
