"""``rankmem job-peak``: when the sum over all ranks peaked, and what made it up."""

from __future__ import annotations

from typing import Annotated

from rankmem_cli.args import options
from rankmem_cli.args.groupings import by_option
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


@options.reads
def job_peak(
    source: options.Target,
    session: options.Session = None,
    by: Grouping = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Show when the sum over all ranks peaked, and what made it up.

    Includes each rank's share at that instant, what held it, by how much the sum of the ranks' own peaks
    exceeds it, and whether differences between the hosts' clocks could change the answer.
    """
    from rankmem_cli.show.job_peak import print_job_peak, show_part
    from rankmem_cli.show.session import open_session

    with open_session(source, session) as (queries, facts):
        if by is None and output is Format.TABLE:
            print_job_peak(queries, facts)
        else:
            show_part(queries, facts, by or "rank", output=output)
