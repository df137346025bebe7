"""``rankmem top``: a live view of all ranks."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from rankmem_cli.args import options
from rankmem_cli.show.render import Format


class Sort(enum.StrEnum):
    """The order of the rows."""

    USED = "used"
    HEADROOM = "headroom"
    PEAK = "peak"
    RANK = "rank"


SortBy = Annotated[
    Sort,
    typer.Option("--sort", help="Highest use, least headroom, highest peak or lowest rank number first."),
]
Every = Annotated[
    float, typer.Option("--every", metavar="S", min=0.2, max=3600.0, help="Seconds between updates.")
]
Once = Annotated[bool, typer.Option("--once", help="Print one snapshot and exit, as in a pipe.")]


@options.reads
def top(
    source: options.Target,
    session: options.Session = None,
    sort: SortBy = Sort.USED,
    every: Every = 2.0,
    once: Once = False,
    output: options.Output = Format.TABLE,
) -> None:
    """Watch all ranks live: the memory each holds, its headroom."""
    import sys

    from rankmem_cli.show import columns
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.session import open_session
    from rankmem_cli.show.top import TopView, sorted_rows

    with open_session(source, session) as (queries, facts):
        if once or output is not Format.TABLE or not sys.stdout.isatty():
            rows = sorted_rows(queries.top(facts.session_id), sort)
            show_answer(queries, facts, rows, columns.top(), output=output)
            return
        TopView(queries, facts, sort=sort, every_s=every).run()
