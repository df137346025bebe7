"""``rankmem control``: how much the ranks of a running job record, changed from outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from rankmem_cli.args import options

What = Annotated[
    Literal["start", "stop", "detail"],
    typer.Argument(
        metavar="start|stop|detail",
        help="stop: record memory alone, no operators, stacks, modules; start: these again; detail: LEVEL.",
    ),
]
Level = Annotated[
    Literal["full", "summary", "auto"] | None,
    typer.Argument(
        metavar="[full|summary|auto]",
        help="The LEVEL of detail: as start; as stop; or by turns, as each rank chooses by its peaks.",
    ),
]
Ranks = Annotated[
    str | None, typer.Option("--ranks", metavar="N,N-M", help="These ranks alone.  [default: all]")
]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="N-M",
        help="In these steps, then as before; N- : from N on.  [default: as soon as all ranks can, for good]",
    ),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", metavar="SECONDS", min=0, help="Longest wait for the ranks.")
]


def control(
    what: What,
    level: Level = None,
    session: options.Session = None,
    ranks: Ranks = None,
    steps: Steps = None,
    db: options.ReadDb = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    timeout_s: TimeoutS = 60.0,
) -> None:
    """Change what the ranks of a running job record, without touching it.

    All ranks change at the same step. Allocations and frees are recorded all the time, so figures of bytes
    stay exact; what is not known of them meanwhile is reported with each answer. Each order is a row for each
    rank: SELECT * FROM control.
    """
    from rankmem_cli.run.controlling import control_ranks

    target = options.target(db, aggregator, tls_ca, tls_cert, tls_key, token_file)
    with replace(target.given, session=session).in_hints():
        control_ranks(target, session, what, level, ranks=ranks, steps=steps, timeout_s=timeout_s)
