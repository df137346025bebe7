"""``rankmem job-peak``: when the sum over all ranks stood highest, and what made it."""

from __future__ import annotations

from typing import Annotated

from rankmem_cli.args.groupings import by_option
from rankmem_cli.args.options import Aggregator, Output, ReadDb, Session
from rankmem_cli.show.render import Format
from rankmem_protos.groupings import words_of

Grouping = Annotated[
    str | None,
    by_option(
        "job-peak",
        "This alone: each rank's share, or what held the memory of all ranks then by "
        f"{words_of('job-peak')}.  [default: in a table rank, category and operator; in json and csv rank]",
    ),
]


def job_peak(
    db: ReadDb = None,
    aggregator: Aggregator = None,
    session: Session = None,
    by: Grouping = None,
    output: Output = Format.TABLE,
) -> None:
    """When the sum over all ranks was highest.

    With each rank's share at that instant, what held it, how far the ranks' own peaks added up lie above it,
    and whether the hosts' clocks could change the answer.
    """
    from rankmem_cli.show.job_peak import print_job_peak, show_part
    from rankmem_cli.show.session import open_queries, session_facts

    with open_queries(db, aggregator) as queries:
        facts = session_facts(queries, session)
        if by is None and output is Format.TABLE:
            print_job_peak(queries, facts)
        else:
            show_part(queries, facts, by or "rank", output=output)
