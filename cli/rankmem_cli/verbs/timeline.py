"""``rankmem timeline``: memory over time, in the terminal and as a file."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rankmem_cli.args import options
from rankmem_cli.args.groupings import by_option
from rankmem_cli.show.render import Format
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import GROUPINGS, words_of

if TYPE_CHECKING:
    from rankmem_aggregator.query.types import CurveBy


class Figure(enum.StrEnum):
    """Which bytes."""

    REQUESTED = "requested"
    ALLOCATED = "allocated"
    ACTIVE = "active"
    RESERVED = "reserved"
    ALL = "all"


Grouping = Annotated[
    str | None,
    by_option(
        "timeline",
        f"A rank's totals; its blocks by {words_of('timeline')}; or sums over ranks by "
        f"{words_of('timeline', of='ranks')}.  [default: overall; rank where several are given]",
    ),
]
OfFigure = Annotated[
    Figure | None,
    typer.Option(
        "--figure",
        help="Requested, allocated, active or reserved bytes, or for overall, stream and component all of "
        "them together.  [default: requested; all for overall]",
    ),
]
OfRanks = Annotated[
    list[int] | None,
    typer.Option(
        "--rank",
        metavar="R",
        min=0,
        help="The rank to show; repeat to add up several.  [default: the highest; for a sum, all]",
    ),
]
AllRanks = Annotated[bool, typer.Option("--all-ranks", help="Add up all ranks, by category, phase, module …")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="D", help="The device to show, such as cuda:0.  [default: the highest]"),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="End of the range.  [default: the last event]")
]
Points = Annotated[
    int,
    typer.Option(
        "--points", metavar="N", min=8, help="Maximum number of points of a curve; its maxima are kept."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write a page (.html), an image (.png) or the points (.csv, .parquet); replaces FILE.",
    ),
]


@options.reads
def timeline(
    source: options.Target,
    session: options.Session = None,
    by: Grouping = None,
    figure: OfFigure = None,
    rank: OfRanks = None,
    all_ranks: AllRanks = False,
    attempt: options.Attempt = None,
    device: Device = None,
    start: options.From = None,
    until: Until = None,
    points: Points = options.POINTS_DEFAULT,
    out: Out = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Plot memory over time, in the terminal or to a file.

    Shows one device of one rank, or the whole job, event by event. Maxima are kept when a curve has more
    points than the terminal has columns.
    """
    from rankmem_aggregator.plots.files import check_out_path
    from rankmem_cli.show import not_recorded
    from rankmem_cli.show.completeness import note_missing, note_stale, with_incomplete
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.session import instant, open_session
    from rankmem_cli.show.timeline import show_timeline, write_file

    if out is not None:
        check_out_path(out)
    if all_ranks and rank:
        raise RankmemError(Code.INVALID, "--rank and --all-ranks cannot be combined", "leave one out")
    by = by or ("rank" if all_ranks or (rank and len(rank) > 1) else "overall")
    with open_session(source, session) as (queries, facts):
        with show_progress("querying"), not_recorded.hinting_at_kernels(facts):
            rows = queries.timeline(
                facts.session_id,
                by=cast("CurveBy", by),
                figure=None if figure is None else figure.value,
                rank="all" if all_ranks else rank or None,
                attempt=attempt,
                device=device,
                from_ns=None if start is None else instant(start, facts),
                until_ns=None if until is None else instant(until, facts),
                points=points,
            )
        missing = queries.incompleteness(facts.session_id).to_pylist()
    show_timeline(with_incomplete(rows, missing, output), by, facts, output=output)
    if output is Format.TABLE:
        for line in not_recorded.notes(facts, GROUPINGS[by].needs):
            note(line)
    note_missing(missing)
    note_stale(queries)
    if out is not None:
        write_file(rows, by, facts, missing, out)
