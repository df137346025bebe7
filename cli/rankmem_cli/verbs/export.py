"""``rankmem export``: a session, or the database, as a file that something else opens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rankmem_aggregator.exports.kinds import KINDS
from rankmem_cli.args.options import Aggregator, ReadDb, Session

COUNTS_SHOWN_MAX: Final = 4
"""The largest tables tell the size of an export; a folder's manifest has them all."""


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(KINDS)}")
    return kind


KindName = Annotated[
    str, typer.Argument(metavar="KIND", help="What to write: see above.", callback=_known, show_default=False)
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write.")]
OfRanks = Annotated[
    list[int] | None,
    typer.Option(
        "--rank",
        metavar="R",
        min=0,
        help="Which rank; several.  [default: all; the highest where a file holds one]",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="The beginning; as --at of rankmem live.  [default: the first event]"
    ),
]
Until = Annotated[
    str | None, typer.Option("--to", "--until", metavar="TIME", help="The end.  [default: the last event]")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what has that name.")]


def export(
    kind: KindName,
    out: Out,
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    rank: OfRanks = None,
    start: From = None,
    until: Until = None,
    force: Force = False,
) -> None:
    from rankmem_aggregator.exports.exporting import export as write_export
    from rankmem_cli.show.completeness import note_incomplete_sessions
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.session import instant, open_queries, session_facts

    with open_queries(db, aggregator) as queries, show_progress(f"writing {out}") as say:
        facts = session_facts(queries, session) if start is not None or until is not None else None
        written = write_export(
            queries,
            kind,
            out,
            session=session,
            ranks=rank,
            from_ns=instant(start, facts) if start is not None and facts else None,
            until_ns=instant(until, facts) if until is not None and facts else None,
            force=force,
            say=say,
        )
        if "session" not in KINDS[kind].parts:  # of all of them
            note_incomplete_sessions(queries)
    largest = sorted(written.counts.items(), key=lambda item: -item[1])[:COUNTS_SHOWN_MAX]
    counts = ", ".join(f"{count:,} {what}" for what, count in largest)
    note(f"wrote {out}{': ' + counts if counts else ''}")
    for remark in written.remarks:
        note(remark)


_LIST = "\n".join(f"  {kind.name:<{max(map(len, KINDS)) + 2}}{kind.doc}" for kind in KINDS.values())
export.__doc__ = f"""Writes a session for another tool to open.

Also while it is written. KIND is one of:

\b
{_LIST}
"""
