"""``rankmem oom``: why did it run out of memory."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from rankmem_cli.args.options import Aggregator, Limit, Output, Rank, ReadDb, Session
from rankmem_cli.show.render import Format


class By(enum.StrEnum):
    """What a row of a failure's part stands for."""

    CATEGORY = "category"
    OPERATOR = "operator"
    LINE = "line"
    MODULE = "module"
    PHASE = "phase"
    STEP = "step"
    ANNOTATION = "annotation"
    STREAM = "stream"
    COMPONENT = "component"
    RANK = "rank"


Grouping = Annotated[
    By | None,
    typer.Option(
        "--by",
        help="This alone, of the one failure: what was alive on its rank then; or what every rank held.  "
        "[default: in a table category, operator, line and rank; in json and csv the failures]",
    ),
]

Failure = Annotated[
    int,
    typer.Option(
        "--failure",
        metavar="N",
        min=1,
        help="Which failure is taken apart: 1 is the earliest, which the others mostly follow from.",
    ),
]


def oom(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    rank: Rank = None,
    by: Grouping = None,
    failure: Failure = 1,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """Allocations that failed, and what was alive then.

    All of them, the earliest first: what was asked for and by whom, what was free and in how large a piece;
    of the first one, the culprit of most that follow, what its rank held by category, operator and line, and
    what every other rank held at the same instant.
    """
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.oom import print_oom, show_part
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import head
    from rankmem_cli.show.session import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with show_progress("asking"):
            failures = queries.oom(facts.session_id, rank=rank)
        if by is not None:
            show_part(queries, facts, failures, by.value, number=failure, output=output)
        elif output is Format.TABLE:
            print_oom(queries, facts, failures, number=failure, limit=limit)
        else:
            shown = head(failures, limit, output=output, table_rows=0)
            show_answer(queries, facts, shown, [], output=output)
