"""``rankmem fetch``: rows of events that stayed on their hosts, brought to the aggregator."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rankmem_cli.args import options

SessionId = Annotated[
    str | None,
    typer.Argument(
        metavar="[SESSION]", help="Its ID, the beginning of one, or its name.  [default: the newest]"
    ),
]
Ranks = Annotated[
    str | None, typer.Option("--ranks", metavar="N,N-M", help="Of these ranks alone.  [default: all]")
]
Around = Annotated[
    Literal["job-peak"] | None,
    typer.Option("--around", help="What can hold the job's peak, until it is known exactly."),
]
From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="What has events from here on, as live --at.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="What has events until here.")]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", metavar="SECONDS", min=0, help="Longest wait for them.")
]


def fetch(
    session: SessionId = None,
    ranks: Ranks = None,
    around: Around = None,
    from_: From = None,
    until: Until = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    timeout_s: TimeoutS = 300.0,
) -> None:
    """Bring events that stayed on their hosts (RANKMEM_EDGE).

    A job that runs with RANKMEM_EDGE=on sends summaries to an aggregator of a lake and keeps its events on
    the hosts. Questions about events of a rank fail until all of them are here; the job's peak needs those
    around it alone. Exit code 1 if some did not come.
    """
    from rankmem_cli.run.fetching import Wanted, fetch_events

    target = options.target(None, aggregator, tls_ca, tls_cert, tls_key, token_file)
    wanted = Wanted(ranks=ranks, is_peak=around is not None, from_=from_, until=until)
    with target.given.in_hints():
        fetch_events(target, session, wanted, timeout_s=timeout_s)
