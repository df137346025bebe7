"""``rankmem oom``: why did it run out of memory."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from rankmem_cli.options import Aggregator, Output, Rank, ReadDb, Session
from rankmem_cli.render import Format


class By(enum.StrEnum):
    """What a row of the last failure's part stands for."""

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
        help="This alone, of the last one: what was alive on its rank then; or what every rank held.  "
        "[default: in a table category, operator, line and rank; in json and csv the failures]",
    ),
]


def oom(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    rank: Rank = None,
    by: Grouping = None,
    output: Output = Format.TABLE,
) -> None:
    """Allocations that failed, and what was alive then.

    What was asked for and by whom, what was free and in how large a piece; of the last one what its rank held
    by category, operator and line, and what every other rank held at the same instant.
    """
    from rankmem_cli.completeness import show_answer
    from rankmem_cli.oom_view import print_oom, show_part
    from rankmem_cli.patience import patience
    from rankmem_cli.target import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        with patience("asking"):
            failures = queries.oom(facts.session_id, rank=rank)
        if by is not None:
            show_part(queries, facts, failures, by.value, output=output)
        elif output is Format.TABLE:
            print_oom(queries, facts, failures)
        else:
            show_answer(queries, facts, failures, [], output=output)
