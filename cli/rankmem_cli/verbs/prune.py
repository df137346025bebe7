"""``rankmem prune``: delete old sessions and shrink the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rankmem_aggregator.retention.limits import Limits

Db = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Database to prune.  [env: RANKMEM_DB; default: rankmem.duckdb]"
    ),
]
KeepDays = Annotated[
    float | None,
    typer.Option("--keep-days", metavar="D", help="Delete sessions that ended more than D days ago."),
]
KeepGib = Annotated[
    float | None,
    typer.Option("--keep-gib", metavar="G", help="Delete the oldest until at most G GiB are in use."),
]
KeepSessions = Annotated[
    int | None, typer.Option("--keep-sessions", metavar="N", help="Delete all but the newest N sessions.")
]
These = Annotated[
    list[str] | None, typer.Option("--session", metavar="ID", help="Delete this session; may be repeated.")
]
Pack = Annotated[
    bool,
    typer.Option(
        "--pack/--no-pack",
        help="Copy what remains into a smaller file; otherwise freed blocks are reused for new rows.",
    ),
]


def prune(
    db: Db = None,
    keep_days: KeepDays = None,
    keep_gib: KeepGib = None,
    keep_sessions: KeepSessions = None,
    session: These = None,
    pack: Pack = True,
) -> None:
    """Delete old sessions from a database and free their space.

    The oldest are deleted first; a running session is never deleted.

    For a file that an aggregator holds, use the --keep options of rankmem serve.
    """
    from rankmem_aggregator.config import target_from_environment
    from rankmem_aggregator.query.next_commands import GivenOptions
    from rankmem_aggregator.retention.compact import prune_file
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.units import bytes_text

    limits = limits_of(keep_days, keep_gib, keep_sessions)
    path = db or Path(target_from_environment())
    given = GivenOptions(source=(("--db", str(path)),))
    with show_progress("deleting"), given.in_hints():
        done = prune_file(path, limits, session or (), pack=pack)
    for session_id in done.session_ids:
        print(session_id)
    note(
        f"{len(done.session_ids)} deleted, {done.num_kept} kept"
        f"{f', of which {done.num_running} may still be running' if done.num_running else ''}; {path}: "
        f"{bytes_text(done.bytes_before)}, now {bytes_text(done.bytes_after)}"
    )


def limits_of(keep_days: float | None, keep_gib: float | None, keep_sessions: int | None) -> Limits:
    """What the options say is kept."""
    from rankmem_aggregator.config import GIB
    from rankmem_aggregator.retention.limits import Limits

    return Limits(days=keep_days or 0.0, sessions=keep_sessions or 0, size_bytes=int((keep_gib or 0.0) * GIB))
