"""``rankmem export``: a session, or the whole database, as files for other tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from rankmem_aggregator.exports.kinds import KINDS
from rankmem_cli.args import options

COUNTS_SHOWN_MAX: Final = 4
"""The largest tables show the size of an export; a folder's manifest has all."""


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(KINDS)}")
    return kind


KindName = Annotated[
    str,
    typer.Argument(metavar="KIND", help="Format to write; see above.", callback=_known, show_default=False),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write.")]
OfRanks = Annotated[
    list[int] | None,
    typer.Option(
        "--rank",
        metavar="R",
        min=0,
        help="Rank to export; may be repeated.  [default: all; the highest if a file holds only one]",
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--to", "--until", metavar="TIME", help="End of the range.  [default: the last event]"),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file or folder.")]


@options.reads
def export(
    kind: KindName,
    out: Out,
    source: options.Target,
    session: options.Session = None,
    rank: OfRanks = None,
    start: options.From = None,
    until: Until = None,
    force: Force = False,
) -> None:
    from rankmem_aggregator.exports.exporting import export as write_export
    from rankmem_cli.show.completeness import note_incomplete_sessions
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.session import instant, open_queries, session_facts

    with (
        open_queries(source) as queries,
        show_progress(f"writing {out}") as update,
    ):
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
            progress=update,
        )
        if "session" not in KINDS[kind].parts:  # of all of them
            note_incomplete_sessions(queries)
    largest = sorted(written.counts.items(), key=lambda item: -item[1])[:COUNTS_SHOWN_MAX]
    counts = ", ".join(f"{count:,} {what}" for what, count in largest)
    note(f"wrote {out}{': ' + counts if counts else ''}")
    given = replace(source.given, session=session)
    for remark in written.remarks:
        note(given.complete(remark))


_LIST = "\n".join(f"  {kind.name:<{max(map(len, KINDS)) + 2}}{kind.doc}" for kind in KINDS.values())
export.__doc__ = f"""Write a session as files for other tools.

Also works while the session is being recorded. KIND is one of:

\b
{_LIST}
"""
