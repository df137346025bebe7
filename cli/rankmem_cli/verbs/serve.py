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
        help="Where to listen; port 0 takes a free one. Off loopback TLS and a token are required.  "
        "[env: RANKMEM_LISTEN; default: 127.0.0.1:7077]",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert", metavar="FILE", help="This aggregator's certificate.  [env: RANKMEM_SERVE_TLS_CERT]"
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="Its private key, readable by you alone.  [env: RANKMEM_SERVE_TLS_KEY]",
    ),
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-ca",
        metavar="FILE",
        help="Serve only clients with a certificate of this CA.  [env: RANKMEM_SERVE_TLS_CLIENT_CA]",
    ),
]
IngestTokens = Annotated[
    Path | None,
    typer.Option(
        "--ingest-token-file",
        metavar="FILE",
        help="Tokens that may write events, one a line.  [env: RANKMEM_SERVE_INGEST_TOKEN_FILE]",
    ),
]
QueryTokens = Annotated[
    Path | None,
    typer.Option(
        "--query-token-file",
        metavar="FILE",
        help="Tokens that may read, one a line.  [env: RANKMEM_SERVE_QUERY_TOKEN_FILE]",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Serve other hosts without TLS or without a token: whoever reaches the port gets in.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Prometheus metrics over HTTP; figures alone, no names, and no token asked.  "
        "[env: RANKMEM_METRICS; default: none]",
    ),
]
MetricsOpen = Annotated[
    bool,
    typer.Option(
        "--metrics-open",
        help="Metrics for other hosts too: in plain text, to whoever reaches the port.",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="Lines on stderr.  [env: RANKMEM_LOG_FORMAT; default: text]",
    ),
]
KeepDays = Annotated[
    float | None,
    typer.Option(
        "--keep-days",
        metavar="D",
        help="Delete sessions whose last batch came longer ago.  [env: RANKMEM_KEEP_DAYS; default: no limit]",
    ),
]
KeepGib = Annotated[
    float | None,
    typer.Option(
        "--keep-gib",
        metavar="G",
        help="Delete the oldest sessions while more of the database is used.  "
        "[env: RANKMEM_KEEP_GIB; default: no limit]",
    ),
]
KeepSessions = Annotated[
    int | None,
    typer.Option(
        "--keep-sessions",
        metavar="N",
        help="Delete all but the newest N sessions; one that runs is never deleted.  "
        "[env: RANKMEM_KEEP_SESSIONS; default: no limit]",
    ),
]
MemoryLimit = Annotated[
    int | None,
    typer.Option("--memory-limit-bytes", metavar="BYTES", help="DuckDB's memory.  [default: a quarter]"),
]
MemoryMax = Annotated[
    int | None,
    typer.Option(
        "--memory-max-bytes",
        metavar="BYTES",
        help="Hard bound on its memory, held by the kernel. A statement that would go beyond fails, or at "
        "worst ends the process.  [env: RANKMEM_MEMORY_MAX_BYTES; default: 1 GiB above what it uses at most]",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="DuckDB's threads.  [default: all]")
]

MaxStreams = Annotated[
    int | None,
    typer.Option(
        "--max-streams",
        metavar="N",
        help="Shippers connected at once, one a host.  [env: RANKMEM_MAX_STREAMS; default: 1024]",
    ),
]
MaxStreamsPerPeer = Annotated[
    int | None,
    typer.Option(
        "--max-streams-per-peer",
        metavar="N",
        help="The same from one address; behind a NAT all hosts have one.  "
        "[env: RANKMEM_MAX_STREAMS_PER_PEER; default: 512]",
    ),
]
StreamIdleS = Annotated[
    float | None,
    typer.Option(
        "--stream-idle-s",
        metavar="SECONDS",
        help="Disconnect a shipper that says nothing for so long; one that lives comes again.  "
        "[env: RANKMEM_STREAM_IDLE_S; default: 120]",
    ),
]


def serve(
    db: Db = None,
    listen: Listen = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    ingest_token_file: IngestTokens = None,
    query_token_file: QueryTokens = None,
    insecure: Insecure = False,
    metrics: Metrics = None,
    metrics_open: MetricsOpen = False,
    log_format: LogFormat = None,
    keep_days: KeepDays = None,
    keep_gib: KeepGib = None,
    keep_sessions: KeepSessions = None,
    memory_limit_bytes: MemoryLimit = None,
    memory_max_bytes: MemoryMax = None,
    threads: Threads = None,
    max_streams: MaxStreams = None,
    max_streams_per_peer: MaxStreamsPerPeer = None,
    stream_idle_s: StreamIdleS = None,
) -> None:
    """Runs an aggregator: stores what shippers send, and answers.

    The first signal drains, the second stops. It runs in a process of its own, which is started again when it
    dies; a statement that ended it is refused from then on.
    """
    from rankmem_aggregator.config import AggregatorConfig
    from rankmem_cli.run.service import serve_until_signalled

    config = AggregatorConfig.from_environment(
        database_path=db,
        listen=listen,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        ingest_token_file=ingest_token_file,
        query_token_file=query_token_file,
        insecure=insecure or None,
        metrics=metrics,
        metrics_open=metrics_open or None,
        log_format=log_format,
        keep_days=keep_days,
        keep_gib=keep_gib,
        keep_sessions=keep_sessions,
        memory_limit_bytes=memory_limit_bytes,
        memory_max_bytes=memory_max_bytes,
        threads=threads,
        max_streams=max_streams,
        max_streams_per_peer=max_streams_per_peer,
        stream_idle_s=stream_idle_s,
    )
    serve_until_signalled(config)
