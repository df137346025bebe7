"""``rankmem top``: all ranks, live."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from rankmem_cli.args.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.show.render import Format


class Sort(enum.StrEnum):
    """What comes first."""

    USED = "used"
    HEADROOM = "headroom"
    PEAK = "peak"
    RANK = "rank"


SortBy = Annotated[
    Sort,
    typer.Option("--sort", help="Highest use, least headroom, highest peak, or the rank's number first."),
]
Every = Annotated[
    float, typer.Option("--every", metavar="S", min=0.2, max=3600.0, help="Seconds between two looks.")
]
Once = Annotated[bool, typer.Option("--once", help="Look once and end, as in a pipe.")]


def top(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    sort: SortBy = Sort.USED,
    every: Every = 2.0,
    once: Once = False,
    output: Output = Format.TABLE,
) -> None:
    """All ranks of a job, live: what each holds, and its headroom."""
    import sys

    from rankmem_cli.show import columns
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.session import open_queries, session_facts
    from rankmem_cli.show.top import TopView, sorted_rows

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        if once or output is not Format.TABLE or not sys.stdout.isatty():
            rows = sorted_rows(queries.top(facts.session_id), sort)
            show_answer(queries, facts, rows, columns.top(), output=output)
            return
        TopView(queries, facts, sort=sort, every_s=every).run()
