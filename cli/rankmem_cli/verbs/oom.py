"""``rankmem oom``: why the job ran out of memory."""

from __future__ import annotations

from typing import Annotated

import typer

from rankmem_cli.args import options
from rankmem_cli.args.groupings import by_option
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format
from rankmem_protos.groupings import words_of

Grouping = Annotated[
    str | None,
    by_option(
        "oom",
        f"This alone, for the one failure: what its rank held then by {words_of('oom')}; or what every rank "
        "held.  [default: in a table category, operator, line and rank; in json and csv the failures]",
    ),
]
Failure = Annotated[
    int,
    typer.Option(
        "--failure",
        metavar="N",
        min=1,
        help="The failure to analyse: 1 is the earliest, which usually causes the others.",
    ),
]
Why = Annotated[
    bool,
    typer.Option(
        "--why",
        help="This alone: what would have helped, by replays of up to 2 million events under other settings "
        "of the allocator. Shown in every format as other insights are, with their exit codes.",
    ),
]


@options.reads
def oom(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    by: Grouping = None,
    failure: Failure = 1,
    limit: options.Limit = None,
    why: Why = False,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show the allocations that failed, and what was alive then.

    Lists all failures, earliest first: the size requested and the operator, how much memory was free and how
    large the largest free piece was. For the first failure, which usually causes the others, also shows what
    its rank held by category, operator and line, what every other rank held at the same instant, and why it
    failed: exhausted, fragmented, foreign, single, leak or spike.
    """
    from rankmem_cli.show.completeness import show_answer
    from rankmem_cli.show.oom import print_oom, show_part
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import head
    from rankmem_cli.show.session import open_session

    if why:
        from rankmem_cli.show import columns
        from rankmem_cli.show.insight import tell

        tell(
            source,
            session,
            lambda queries, facts: queries.why_oom(facts.session_id, rank=rank, failure=failure),
            lambda answer: columns.why_oom(),
            output=output,
            fail_on=fail_on,
        )
        return
    with open_session(source, session) as (queries, facts):
        with show_progress("querying"):
            failures = queries.oom(facts.session_id, rank=rank)
        if by is not None:
            show_part(queries, facts, failures, by, number=failure, output=output)
        elif output is Format.TABLE:
            print_oom(queries, facts, failures, number=failure, limit=limit, rank=rank)
        else:
            shown = head(failures, limit, output=output, table_rows=0)
            show_answer(queries, facts, shown, [], output=output)
