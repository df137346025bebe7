"""``rankmem prune``: old sessions go, the file gets smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmem_cli.args.options import ReadDb

KeepDays = Annotated[
    float | None, typer.Option("--keep-days", metavar="D", help="Delete sessions that ended longer ago.")
]
KeepGib = Annotated[
    float | None, typer.Option("--keep-gib", metavar="G", help="Delete the oldest until this much is used.")
]
KeepSessions = Annotated[
    int | None, typer.Option("--keep-sessions", metavar="N", help="Delete all but the newest N.")
]
These = Annotated[
    list[str] | None, typer.Option("--session", metavar="ID", help="Delete this one; may be given often.")
]
Pack = Annotated[
    bool,
    typer.Option(
        "--pack/--no-pack",
        help="Copy what is left into a smaller file; without, its free blocks take the rows to come.",
    ),
]


def prune(
    db: ReadDb = None,
    keep_days: KeepDays = None,
    keep_gib: KeepGib = None,
    keep_sessions: KeepSessions = None,
    session: These = None,
    pack: Pack = True,
) -> None:
    """Deletes old sessions of a file, whole, and gives the space back.

    The oldest go first, one that runs never.

    A file that an aggregator holds is kept small by its own --keep options.
    """
    from rankmem_aggregator.config import GIB, target_from_environment
    from rankmem_aggregator.retention.compact import prune_file
    from rankmem_aggregator.retention.limits import Limits
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.units import bytes_text

    limits = Limits(
        days=keep_days or 0.0, sessions=keep_sessions or 0, size_bytes=int((keep_gib or 0.0) * GIB)
    )
    path = db or Path(target_from_environment())
    with show_progress("deleting"):
        done = prune_file(path, limits, session or (), pack=pack)
    for session_id in done.session_ids:
        print(session_id)
    note(
        f"{len(done.session_ids)} deleted, {done.num_kept} kept"
        f"{f', of which {done.num_running} may still go on' if done.num_running else ''}; {path}: "
        f"{bytes_text(done.bytes_before)}, now {bytes_text(done.bytes_after)}"
    )
