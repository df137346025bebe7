"""The configuration of an aggregator: one frozen value, checked at once.

Stage: before the server opens. In: arguments, flags and the environment (read here and nowhere else in this
package); out: an :class:`AggregatorConfig`. Argument > flag > environment > default. What users see of an
option (help, environment variable, least value) is declared at its field (see ``options``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self, get_args

from rankmem_aggregator import config_checks
from rankmem_aggregator.host_port import split_address
from rankmem_aggregator.logs import LogFormat
from rankmem_aggregator.machine import memory_bytes
from rankmem_aggregator.options import option, options_of
from rankmem_protos.errors import Code, RankmemError

MIB: Final = 1 << 20
GIB: Final = 1 << 30

DATABASE_DEFAULT: Final = "rankmem.duckdb"
LISTEN_DEFAULT: Final = "127.0.0.1:7077"
LISTEN_EMBEDDED: Final = "127.0.0.1:0"
"""Loopback, any free port, which the shippers of this host are given."""
MEMORY_LIMIT_SHARE: Final = 4
"""A quarter of the machine's memory: an embedded aggregator lives beside the training."""
MEMORY_MAX_SPARE_BYTES: Final = GIB
"""Between the use of the process with all limits met at once and the bound: for a statement until the next
check, and for memory that allocators reserve without touching it (130 MiB of 330 after 800,000 rows)."""
MEMORY_MAX_LEAST_BYTES: Final = 512 * MIB
"""Above DuckDB's memory: the process itself, 150 MiB idle, and a group being stored."""
COMMIT_RESERVE_BYTES: Final = GIB
"""DuckDB may hold this beyond the memory limit, so that commits find memory: statements are stopped at the
limit, checked every 20 ms, and one that keeps a core busy takes half a GiB a second. Without memory for a
COMMIT or for the end of a transaction DuckDB 2.0 invalidates the database, hangs or crashes (seen, one each
in 40 rounds with 256 MiB in all)."""
BESIDE_BYTES: Final = 2 * GIB
"""The process may hold this beside DuckDB's memory, the queue and a group before it is overloaded: its code,
results being sent, memory that allocators keep. 1.6 GiB after ten minutes at 480,000 events/s."""
EMBEDDED_THREADS_SHARE: Final = 4
"""Of the processors, beside a training. One thread also takes a tenth less CPU time for the same rows: with
two or more, DuckDB 2.0 appends those of a small group twice (measured)."""
EMBEDDED_ROW_GROUP_ROWS: Final = 122_880
"""DuckDB's own. The ranks of one host make small commits, which pass through the log at any size of row
group, and smaller ones took 1 to 2 bytes an event more on disk."""
EMBEDDED_IDLE_CHECKPOINT_BYTES: Final = 64 * MIB
"""With row groups of this size, checkpoints at 32 MiB took half as much CPU time again."""
MEMORY_LIMIT_MAX_BYTES: Final = 4 * GIB
"""Unless more is asked for: ingest and the queries of rankmem need no more, and DuckDB fills its memory with
blocks of the file, which no other program can use then."""
METRICS_RANKS_MAX: Final = 1000
"""Devices of ranks in metrics: three series each, so a scrape stays below half a megabyte."""
MEMORY_LIMIT_MIN_BYTES: Final = 256 * MIB
"""With less DuckDB fails on the insert of one full group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorConfig:
    """Options of one aggregator process."""

    database_path: Path = option(
        Path(DATABASE_DEFAULT), "Database to write.", variable="RANKMEM_DB", flag="--db", metavar="FILE"
    )
    """A DuckDB file; made where it does not exist."""
    lake: str = option(
        "",
        "Write a lake instead of a database: a folder, or s3://BUCKET/PREFIX. Any number of aggregators may.",
        variable="RANKMEM_SERVE_LAKE",
        metavar="URI",
    )
    """See docs/scale.md; needs rankmem[lake]."""
    lake_interval_s: float = option(
        15.0,
        "Longest time that received batches wait for a commit to the lake, seconds.",
        variable="RANKMEM_SERVE_LAKE_INTERVAL_S",
        metavar="SECONDS",
        least=0.05,
    )
    """Each commit is a file a table, so with more than 20 aggregators 60 s are better."""
    lake_batch_bytes: int = option(64 * MIB, "Decoded bytes that are stored sooner.", least=1)
    """In memory twice while they are written."""
    lake_peak_bytes: int = option(
        256 * MIB,
        "Bytes of events of a session that are brought from its hosts unasked, to know the job's peak.",
        variable="RANKMEM_SERVE_LAKE_PEAK_BYTES",
        metavar="BYTES",
        least=0,
    )
    """With RANKMEM_EDGE. 0: none; rankmem fetch --around job-peak brings them then."""
    listen: str = option(
        LISTEN_DEFAULT,
        "Where to listen; port 0 takes a free one. Off loopback TLS and a token are required.",
        variable="RANKMEM_LISTEN",
        metavar="HOST:PORT",
    )
    tls_cert: Path | None = option(
        None, "This aggregator's certificate.", variable="RANKMEM_SERVE_TLS_CERT", metavar="FILE"
    )
    """In PEM; likewise the key and the CA."""
    tls_key: Path | None = option(
        None, "Its private key, readable by you alone.", variable="RANKMEM_SERVE_TLS_KEY", metavar="FILE"
    )
    tls_client_ca: Path | None = option(
        None,
        "Serve only clients with a certificate of this CA.",
        variable="RANKMEM_SERVE_TLS_CLIENT_CA",
        metavar="FILE",
    )
    ingest_token_file: Path | None = option(
        None,
        "Tokens that may write events, one per line.",
        variable="RANKMEM_SERVE_INGEST_TOKEN_FILE",
        metavar="FILE",
    )
    query_token_file: Path | None = option(
        None, "Tokens that may read, one per line.", variable="RANKMEM_SERVE_QUERY_TOKEN_FILE", metavar="FILE"
    )
    control_token_file: Path | None = option(
        None,
        "Tokens that may read and control what ranks record, one per line.",
        variable="RANKMEM_SERVE_CONTROL_TOKEN_FILE",
        metavar="FILE",
    )
    """With one of the three files, what the others would allow is closed."""
    insecure: bool = option(
        False, "Serve other hosts without TLS or without a token: anybody who reaches the port gets in."
    )
    metrics: str = option(
        "",
        "Prometheus metrics over HTTP; figures only, no names, no token required.",
        variable="RANKMEM_METRICS",
        metavar="HOST:PORT",
        shown_default="none",
    )
    metrics_open: bool = option(
        False, "Metrics for other hosts too: in plain text, to anybody who reaches the port."
    )
    metrics_ranks: int = option(
        0,
        "Metrics also of the N devices of ranks that hold most memory, with names of sessions.",
        variable="RANKMEM_METRICS_RANKS",
        metavar="N",
        least=0,
        shown_default="none",
    )
    """Three series each; at most 12 N devices an hour, see ``ingest.rank_memory``."""
    otlp: str = option(
        "",
        "Also send the metrics to this OpenTelemetry collector, by OTLP over HTTP.",
        variable="RANKMEM_OTLP",
        metavar="URL",
        shown_default="none",
    )
    """Needs rankmem[otlp]; certificates and headers by the variables OTEL_EXPORTER_OTLP_…."""
    otlp_interval_s: float = option(
        60.0, "From one request to the collector to the next, seconds.", metavar="S", least=1.0
    )
    page: str = option(
        "",
        "Also serve the web page here, from a process of its own; off loopback with the same TLS and query "
        "tokens.",
        variable="RANKMEM_SERVE_PAGE",
        metavar="HOST:PORT",
        shown_default="none",
    )
    page_name: str = option(
        "",
        "Further host names by which browsers reach the page, separated by commas.",
        variable="RANKMEM_SERVE_PAGE_NAME",
        metavar="NAMES",
    )
    log_format: LogFormat = option(
        "text", "Format of the lines on stderr.", variable="RANKMEM_LOG_FORMAT", metavar="text|json"
    )
    keep_days: float = option(
        0.0,
        "Delete sessions whose last batch is older than D days.",
        variable="RANKMEM_KEEP_DAYS",
        metavar="D",
        least=0,
        shown_default="no limit",
    )
    keep_gib: float = option(
        0.0,
        "Delete the oldest sessions while more than G GiB of the database are used.",
        variable="RANKMEM_KEEP_GIB",
        metavar="G",
        least=0,
        shown_default="no limit",
    )
    keep_sessions: int = option(
        0,
        "Delete all but the newest N sessions; one that is running is never deleted.",
        variable="RANKMEM_KEEP_SESSIONS",
        metavar="N",
        least=0,
        shown_default="no limit",
    )
    memory_limit_bytes: int = option(
        0,
        "What statements may hold of DuckDB's memory.",
        variable="RANKMEM_MEMORY_LIMIT_BYTES",
        metavar="BYTES",
        least=0,
        shown_default="a quarter of the machine's or container's, at most 4 GiB",
    )
    """1 GiB beside it is for commits alone. 0: the default."""
    memory_max_bytes: int = option(
        0,
        "Hard bound on its memory, enforced by the kernel. A statement that would go beyond fails, or at "
        "worst ends the process.",
        variable="RANKMEM_MEMORY_MAX_BYTES",
        metavar="BYTES",
        least=0,
        shown_default="1 GiB above what it uses at most",
    )
    """RLIMIT_DATA; stacks of threads come on top. 0: what DuckDB, the queue and a group take and 3 GiB, at
    most three quarters of the machine's memory."""
    memory_budget_bytes: int = option(
        0,
        "Resident memory from which on the queue takes an eighth and one new shipper a second is let in.",
        variable="RANKMEM_MEMORY_BUDGET_BYTES",
        least=0,
        shown_default="DuckDB's memory, the queue, a group and 2 GiB, below the hard bound",
    )
    threads: int = option(
        0,
        "DuckDB's threads.",
        variable="RANKMEM_THREADS",
        metavar="N",
        least=0,
        shown_default="all processors",
    )
    """0: as many as this process may use processors."""
    temp_directory: Path | None = option(None, "Where DuckDB spills; None: `<database>.tmp` beside the file.")
    checkpoint_threshold_bytes: int = option(
        256 * MIB, "Size of the write-ahead log that triggers a checkpoint.", least=1
    )
    """Larger: fewer rewrites of half-full row groups. The commit that meets it, and all behind it, wait: 1.7
    to 2.3 s on a busy machine."""
    idle_checkpoint_bytes: int = option(32 * MIB, "The same while no batch waits.", least=1)
    """So the commit behind it waits half as long as at 64 MiB, for a twentieth more CPU time. Only commits of
    less than a row group fill the log."""
    row_group_rows: int = option(
        40_960, "Rows that DuckDB stores as one piece, a multiple of 2,048.", least=2048
    )
    """More rows of a table in a commit are written at once; fewer go through the log and are packed at a
    checkpoint, for which commits wait. At 77,000 events a commit a million events took 1.9 CPU seconds, with
    DuckDB's own 122,880 3.8; but 2 bytes an event more on disk. So within `rankmem run` it is 122,880."""
    queue_batches_max: int = option(
        1024, "Decoded batches waiting for the writer; with more, ingest calls wait.", least=1
    )
    queue_bytes_max: int = option(256 * MIB, "The same bound in bytes of decoded Arrow.", least=MIB)
    group_rows_max: int = option(1_000_000, "Rows of one table committed together.", least=1)
    group_bytes_max: int = option(192 * MIB, "Decoded bytes committed together.", least=1)
    """Some 800,000 events with all that belongs to them."""
    group_wait_s: float = option(
        0.05,
        "How long the first batch of a group waits for others while the group is small, seconds.",
        least=0,
    )
    group_interval_s: float = option(0.2, "Least time between two small groups, seconds.", least=0)
    """Less than half the shippers' flush interval. A commit costs some 15 ms of CPU however little is in it:
    with ten a second, 20,000 events/s took 9.5 CPU seconds a million."""
    max_streams: int = option(
        1024,
        "Shippers connected at once, one per host.",
        variable="RANKMEM_MAX_STREAMS",
        metavar="N",
        least=1,
    )
    """Each holds two threads."""
    max_streams_per_peer: int = option(
        512,
        "The same from one address; behind a NAT all hosts have one.",
        variable="RANKMEM_MAX_STREAMS_PER_PEER",
        metavar="N",
        least=1,
    )
    """So that no client keeps all others out: behind one NAT 512 hosts of 8 ranks."""
    stream_idle_s: float = option(
        120.0,
        "Disconnect a shipper that is silent for so long; one that is alive connects again.",
        variable="RANKMEM_STREAM_IDLE_S",
        metavar="SECONDS",
        least=30,
    )
    """It probes the clock every 10 s."""
    queries_max: int = option(
        16, "Client queries and exports running at once; more are refused with EXHAUSTED.", least=1
    )
    query_timeout_s: float = option(
        60.0, "Longest run of a client's statement, seconds; a request may ask for less.", least=0.001
    )
    query_row_limit: int = option(
        10_000_000, "Most rows a client's statement may return; a request may ask for less.", least=1
    )

    def __post_init__(self) -> None:
        for found in options_of(type(self)):
            value = getattr(self, found.name)
            if found.least is not None and not value >= found.least:
                raise RankmemError(
                    Code.INVALID,
                    f"{found.flag} is {value}, must be at least {found.least}",
                    f"give {found.flag} {found.least} or more",
                )
        self._check_addresses()
        if self.lake and (self.keep_days or self.keep_gib or self.keep_sessions):
            raise RankmemError(
                Code.INVALID,
                "--keep-days, --keep-gib and --keep-sessions are limits of a database file",
                "leave them out: sessions of a lake are deleted by rankmem lake prune",
            )
        if self.metrics_ranks > METRICS_RANKS_MAX:
            raise RankmemError(
                Code.INVALID,
                f"--metrics-ranks is {self.metrics_ranks}, must be at most {METRICS_RANKS_MAX}",
                "give fewer; rankmem top shows all ranks",
            )
        if self.log_format not in get_args(LogFormat):
            raise RankmemError(
                Code.INVALID,
                f"--log-format is {self.log_format!r}",
                f"give {' or '.join(get_args(LogFormat))}",
            )
        if 0 < self.memory_limit_bytes < MEMORY_LIMIT_MIN_BYTES:
            raise RankmemError(
                Code.INVALID,
                f"--memory-limit-bytes is {self.memory_limit_bytes}, too small to insert a group",
                f"give at least {MEMORY_LIMIT_MIN_BYTES}, or 0 for the default",
            )
        least = self.duckdb_memory() + MEMORY_MAX_LEAST_BYTES
        if 0 < self.memory_max_bytes < least:
            raise RankmemError(
                Code.INVALID,
                f"--memory-max-bytes is {self.memory_max_bytes}, and {least} are needed with "
                f"--memory-limit-bytes {self.memory_limit()}",
                f"give at least {least}, or a lower --memory-limit-bytes",
            )

    def _check_addresses(self) -> None:
        config_checks.check_tls(self.tls_cert, self.tls_key, self.tls_client_ca)
        config_checks.check_listen(
            self.listen, has_tls=self.tls_cert is not None, has_tokens=self.has_tokens, insecure=self.insecure
        )
        if self.metrics:
            config_checks.check_metrics(self.metrics, is_open=self.metrics_open or self.insecure)
        if self.otlp:
            config_checks.check_otlp(self.otlp)
        if self.page:
            config_checks.check_page(self.page, is_closed=self.has_tokens and self.query_token_file is None)

    @classmethod
    def embedded(cls, database_path: Path, environment: Mapping[str, str] | None = None) -> Self:
        """For an aggregator within another command, for this host alone: on loopback, any free port.

        Variables for a served one (address, certificate, tokens) do not apply to it. By default DuckDB takes
        a quarter of the processors, one at least: the training needs the others.
        """
        environment = os.environ if environment is None else environment
        served = ("RANKMEM_SERVE_", "RANKMEM_METRICS", "RANKMEM_OTLP", "RANKMEM_LOG_FORMAT", "RANKMEM_KEEP_")
        kept = {name: text for name, text in environment.items() if not name.startswith(served)}
        config = cls.from_environment(kept, database_path=database_path, listen=LISTEN_EMBEDDED)
        return replace(
            config,
            threads=config.threads or max(1, config.thread_count() // EMBEDDED_THREADS_SHARE),
            row_group_rows=EMBEDDED_ROW_GROUP_ROWS,
            idle_checkpoint_bytes=EMBEDDED_IDLE_CHECKPOINT_BYTES,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **options: object) -> Self:
        """Options given here, else the environment, else the defaults; None counts as not given."""
        environment = os.environ if environment is None else environment
        given: dict[str, object] = {}
        for found in options_of(cls):
            if text := environment.get(found.variable):
                try:
                    given[found.name] = found.kind(text)
                except ValueError as exc:
                    raise RankmemError(
                        Code.INVALID, f"{found.variable} is {text!r}, not a number", f"unset {found.variable}"
                    ) from exc
        if options.get("lake") and options.get("database_path") is not None:
            raise RankmemError(
                Code.INVALID,
                f"both --lake {options['lake']} and --db {options['database_path']} are given",
                "give one of them: an aggregator writes a lake or a database",
            )
        given |= {name: value for name, value in options.items() if value is not None}
        return cls(**given)  # type: ignore[arg-type]  # names and types are checked by the dataclass and the caller

    @property
    def has_tokens(self) -> bool:
        """Whether a call needs a token."""
        files = (self.ingest_token_file, self.query_token_file, self.control_token_file)
        return any(file is not None for file in files)

    def memory_limit(self) -> int:
        """The effective memory limit, bytes."""
        if self.memory_limit_bytes:
            return self.memory_limit_bytes
        most = min(memory_bytes(), self.memory_max_bytes or memory_bytes())
        return max(MEMORY_LIMIT_MIN_BYTES, min(most // MEMORY_LIMIT_SHARE, MEMORY_LIMIT_MAX_BYTES))

    def duckdb_memory(self) -> int:
        """DuckDB's own limit, bytes."""
        return self.memory_limit() + COMMIT_RESERVE_BYTES

    def memory_budget(self) -> int:
        """The resident memory from which on shippers wait, bytes: below the bound."""
        bound = self.memory_max()
        before = max(bound * 7 // 8, bound - MEMORY_MAX_SPARE_BYTES)
        return self.memory_budget_bytes or min(self._needed_bytes(), before)

    def memory_max(self) -> int:
        """The effective bound, bytes."""
        if self.memory_max_bytes:
            return self.memory_max_bytes
        most = min(self._needed_bytes() + MEMORY_MAX_SPARE_BYTES, memory_bytes() * 3 // 4)
        return max(most, self.duckdb_memory() + MEMORY_MAX_LEAST_BYTES)

    def _needed_bytes(self) -> int:
        """Bytes that the process uses with all its limits met at once."""
        return self.duckdb_memory() + self.queue_bytes_max + self.group_bytes_max + BESIDE_BYTES

    def thread_count(self) -> int:
        """The number of DuckDB's threads."""
        return self.threads or len(os.sched_getaffinity(0))

    def temp_path(self) -> Path:
        """The folder that DuckDB spills to."""
        return self.temp_directory or self.database_path.with_name(self.database_path.name + ".tmp")


def target_from_environment(
    database_path: str | Path | None = None,
    aggregator: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The target of a reading verb: a database's path or HOST:PORT.

    The options first, then RANKMEM_DB, then RANKMEM_AGGREGATOR, then the file in this folder.

    Raises:
        RankmemError: INVALID if both options are given, or an aggregator that is not HOST:PORT.
    """
    environment = os.environ if environment is None else environment
    if database_path is not None and aggregator is not None:
        raise RankmemError(
            Code.INVALID,
            f"both --db {database_path} and --aggregator {aggregator} are given",
            "give one of them",
        )
    if aggregator is not None:
        split_address(aggregator)
    if database_path is not None or aggregator is not None:
        return str(aggregator if database_path is None else database_path)
    return environment.get("RANKMEM_DB") or environment.get("RANKMEM_AGGREGATOR") or DATABASE_DEFAULT
