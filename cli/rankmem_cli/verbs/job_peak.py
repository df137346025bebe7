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


def job_peak(
    db: options.ReadDb = None,
    lake: options.Lake = None,
    engine: options.Engine = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
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

    target = options.source(db, lake, aggregator, tls_ca, tls_cert, tls_key, token_file, engine)
    with open_session(target, session) as (queries, facts):
        if by is None and output is Format.TABLE:
            print_job_peak(queries, facts)
        else:
            show_part(queries, facts, by or "rank", output=output)
