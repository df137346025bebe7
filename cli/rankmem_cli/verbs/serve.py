"""``rankmem serve``: an aggregator of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Db = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Database to write.  [env: RANKMEM_DB; default: rankmem.duckdb]"
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Where to listen; port 0 takes a free one.  [default: 127.0.0.1:7077]",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Serve other hosts in plain text, without a token.")
]
MemoryLimit = Annotated[
    int | None,
    typer.Option("--memory-limit-bytes", metavar="BYTES", help="DuckDB's memory.  [default: a quarter]"),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="DuckDB's threads.  [default: all]")
]


def serve(
    db: Db = None,
    listen: Listen = None,
    insecure: Insecure = False,
    memory_limit_bytes: MemoryLimit = None,
    threads: Threads = None,
) -> None:
    """Runs an aggregator: stores what shippers send, and answers.

    The first signal drains, the second stops.
    """
    from rankmem_aggregator.config import AggregatorConfig
    from rankmem_cli.service import serve_until_signalled

    config = AggregatorConfig.from_environment(
        database_path=db,
        listen=listen,
        insecure=insecure or None,
        memory_limit_bytes=memory_limit_bytes,
        threads=threads,
    )
    serve_until_signalled(config)
