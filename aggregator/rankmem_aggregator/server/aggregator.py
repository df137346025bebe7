"""The aggregator's life: open, serve, close.

Stage: wiring. :func:`open` makes store, writer, queries and gRPC server, binds the port and leaves the
address beside the database; :meth:`Aggregator.serve` blocks until asked to stop or a thread died;
:meth:`Aggregator.close` drains: no new ingest calls, what is queued is committed and acknowledged, the file
is checkpointed and closed.
Threads only, no process, no signal handler: it may be embedded in another program.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from concurrent import futures
from importlib import metadata
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.host_port import is_every_address, split_address
from rankmem_aggregator.ingest.batch_writer import BatchWriter
from rankmem_aggregator.ingest.counters import WriterCounters
from rankmem_aggregator.ingest.writer import Writer
from rankmem_aggregator.sandbox.client_queries import ClientQueries
from rankmem_aggregator.server.messages import ReadMessages
from rankmem_aggregator.server.peers import (
    REFLECTIONS_MAX,
    UNSENT_MAX,
    WATCHES_MAX,
    FirstMessages,
    Health,
    Reflection,
)
from rankmem_aggregator.server.process_exit import CALLS
from rankmem_aggregator.server.services import CollectorService, QueryService
from rankmem_aggregator.server.tls import server_credentials
from rankmem_aggregator.server.tokens import Right, TokenInterceptor, Tokens
from rankmem_aggregator.server.watch import Condition, Watch, release_memory
from rankmem_aggregator.store.address import remove_address, write_address
from rankmem_aggregator.store.served import ServedStore
from rankmem_aggregator.store.store import Store, open_store
from rankmem_aggregator.supervision.crashed_statements import StatementGuard
from rankmem_aggregator.supervision.memory_bound import MemoryBound
from rankmem_protos import collector_pb2, collector_pb2_grpc, query_pb2, query_pb2_grpc
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.lake.served import LakeStore
    from rankmem_aggregator.lake.unasked import PeakBringer
    from rankmem_aggregator.server.metrics import MetricsServer
    from rankmem_aggregator.server.otlp import OtlpSender

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX: Final = 4 << 20
"""gRPC's default, made explicit: shippers and readers stay under it."""
KEEPALIVE_MIN_MS: Final = 5_000
"""Clients may ping this often without a call; a stricter server answers with GOAWAY (too_many_pings)."""
KEEPALIVE_MS: Final = 60_000
"""A connection that answers no ping for so long is dead: its host is gone, its threads are released."""
UNARY_THREADS: Final = 8
"""For status and health beside ingest calls and statements."""
SIGNALS_SEEN_S: Final = 1.0
"""A signal delivered to another thread is handled when the main one wakes; without a limit it never does."""
CLOSE_TIMEOUT_S: Final = 30.0
"""To commit and acknowledge what was received; the rest stays in the spools."""
CALL_GRACE_SHARE: Final = 0.25
"""Of the time to close: for the last acknowledgements to reach the shippers."""
CANCEL_S: Final = 5.0
"""For gRPC to end the calls that are then cancelled; the database is closed in any case."""

_SERVICES: Final = (
    collector_pb2.DESCRIPTOR.services_by_name["Collector"].full_name,
    query_pb2.DESCRIPTOR.services_by_name["Query"].full_name,
)


class Aggregator:
    """A running aggregator. Made by :func:`open`; also a context manager that closes at its end."""

    def __init__(
        self,
        config: AggregatorConfig,
        store: Store | LakeStore,
        *,
        guard: StatementGuard | None = None,
        bound: MemoryBound | None = None,
        pid: int | None = None,
    ) -> None:
        self.config = config
        self._bound = bound
        self._guard = guard
        self._pid = os.getpid() if pid is None else pid
        self.address = ""
        """HOST:PORT with the port that was bound."""
        self.store: ServedStore = store
        self._stop = threading.Event()
        self._closed = False
        self._close_lock = threading.Lock()
        self._failure: BaseException | None = None
        self._queries = ClientQueries(store, config, guard)
        self._writer = self._writer_of(store)
        self._collector = CollectorService(
            self._writer, store.facts.database_id, config, self._follow_threads
        )
        self._health = Health()
        others_max = WATCHES_MAX + REFLECTIONS_MAX + UNSENT_MAX + UNARY_THREADS
        calls_max = config.max_streams + config.queries_max + others_max
        self._threads = futures.ThreadPoolExecutor(
            max_workers=calls_max,
            thread_name_prefix=CALLS,
        )
        tokens = Tokens(
            {
                Right.INGEST: config.ingest_token_file,
                Right.QUERY: config.query_token_file,
                Right.CONTROL: config.control_token_file,
            }
        )
        self._server = _grpc_server(self._threads, tokens, calls_max)
        self._watch = Watch(store, self._writer, self._set_health, self._enforce_limits, self._die)
        self._metrics: MetricsServer | None = None
        self._otlp: OtlpSender | None = None
        self._bringer = self._peak_bringer()
        self._register()

    @property
    def counters(self) -> WriterCounters:
        """Totals of what was written so far."""
        return self._writer.counters

    def start(self) -> None:
        """Binds the ports, starts the threads, leaves the address beside the database."""
        host, _ = split_address(self.config.listen)
        if self.config.metrics or self.config.otlp:
            self._open_metrics()
        port = _bind(self._server, self.config)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{port}"
        self._writer.start()
        self._server.start()
        self._watch.start()
        if self._bringer is not None:
            self._bringer.start()
        for sender in (self._metrics, self._otlp):
            if sender is not None:
                sender.start()
        if not self.config.lake:  # readers of a lake need no aggregator
            write_address(
                self.config.database_path,
                f"127.0.0.1:{port}" if is_every_address(host) else self.address,
                tls=self.config.tls_cert is not None,
                token=self.config.has_tokens,
                pid=self._pid,
            )
        logger.info("serving %s at %s", self.store.place, self.address)

    def serve(self) -> None:
        """Blocks until :meth:`stop` is called.

        Raises:
            RankmemError: INTERNAL if a thread of the service died; close it then.
        """
        while not self._stop.wait(SIGNALS_SEEN_S):
            pass
        if self._failure is not None:
            raise RankmemError(
                Code.INTERNAL,
                f"the aggregator stopped: {self._failure}",
                "what was acknowledged is stored; see the log",
            ) from self._failure

    def stop(self) -> None:
        """Lets :meth:`serve` return. Any thread, also a signal handler."""
        self._stop.set()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Drains and closes; idempotent. True if everything received is stored and acknowledged.

        Args:
            timeout_s: for the whole; what is not committed by then stays in the shippers' spools.
        """
        with self._close_lock:
            if self._closed:
                return True
            self._closed = True
            return self._drain(timeout_s)

    def _drain(self, timeout_s: float) -> bool:
        self._stop.set()
        self._watch.close()
        if self._bringer is not None:
            self._bringer.stop()
        deadline = time.monotonic() + timeout_s
        self._health.enter_graceful_shutdown()
        self._collector.drain()
        drained = self._writer.close(timeout_s * (1 - CALL_GRACE_SHARE))
        # Grace lets the last acknowledgements out; then the remaining calls are cancelled.
        grace_s = max(0.0, min(timeout_s * CALL_GRACE_SHARE, deadline - time.monotonic()))
        if not self._server.stop(grace_s).wait(grace_s + CANCEL_S):
            logger.warning("some calls did not end when they were cancelled; they end with this process")
        self._queries.interrupt_all(
            RankmemError(Code.UNAVAILABLE, "the aggregator is closing", "try again when it is back")
        )
        if self._bringer is not None:
            self._bringer.close()
        self._threads.shutdown(wait=False)
        self._collector.close()
        for sender in (self._metrics, self._otlp):
            if sender is not None:
                sender.close()
        self.store.close()
        if not self.config.lake:
            remove_address(self.config.database_path, self._pid)
        return drained and self._failure is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _writer_of(self, store: Store | LakeStore) -> BatchWriter:
        if isinstance(store, Store):
            return Writer(store, self.config, free_memory=self._free_memory, died=self._die)
        from rankmem_aggregator.lake.writer import LakeWriter

        writer = LakeWriter(store.files, store.lanes, self.config, died=self._die)
        store.follow(writer.tail.now, writer.refresh)
        return writer

    def _peak_bringer(self) -> PeakBringer | None:
        if not self.config.lake:
            return None
        from rankmem_aggregator.lake.unasked import PeakBringer

        return PeakBringer(
            self._queries,
            self._collector.kept_spools,
            self._writer.liveness.alive_sessions,
            self._collector.want,
            bytes_max=self.config.lake_peak_bytes,
            died=self._die,
        )

    def _register(self) -> None:
        query = QueryService(
            self.store, self._queries, self._writer, self._collector, lambda: self._watch.condition
        )
        collector_pb2_grpc.add_CollectorServicer_to_server(self._collector, self._server)
        query_pb2_grpc.add_QueryServicer_to_server(query, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflected = Reflection((*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, self._server)

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of the metrics; empty: none are served."""
        return "" if self._metrics is None else self._metrics.address

    def _open_metrics(self) -> None:
        """What a scrape gets and what a collector is sent are the same figures."""
        from rankmem_aggregator.server.metrics import MetricSources, MetricsServer, RankmemCollector

        sources = MetricSources(
            writer=self._writer,
            condition=lambda: self._watch.condition,
            streams_open=lambda: self._collector.num_calls,
            queries_running=lambda: self._queries.running,
            version=metadata.version("rankmem"),
        )
        figures = RankmemCollector(sources)
        if self.config.metrics:
            self._metrics = MetricsServer(self.config.metrics, figures)
        if self.config.otlp:
            from rankmem_aggregator.server.otlp import OtlpSender

            database_id = self.store.facts.database_id
            self._otlp = OtlpSender(self.config.otlp, self.config.otlp_interval_s, figures, database_id)

    def _set_health(self, condition: Condition) -> None:
        """NOT_SERVING while nothing can be stored: balancers and probes read it, shippers do not."""
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if condition.is_serving else statuses.NOT_SERVING
        for service in ("", *_SERVICES):
            self._health.set(service, status)

    def _enforce_limits(self, condition: Condition) -> None:
        """Once a second: enforces limits, and reports to waiting shippers why they wait."""
        self._check_bound()
        budget_bytes = self.config.memory_budget()
        is_overloaded = condition.rss_bytes > budget_bytes
        overload = f"the aggregator uses {condition.rss_bytes} bytes of memory, more than {budget_bytes}"
        self._writer.queue.shrink(is_overloaded)
        self._collector.set_overloaded(overload if is_overloaded else "")
        if is_overloaded:
            release_memory()  # new shippers wait for as long as this process looks large
        waiting = overload if is_overloaded else self._writer.waits_for
        self._collector.report_busy(condition.reason or waiting, is_stalled=not condition.is_serving)
        self._collector.end_idle()
        self._writer.maintain()

    def _check_bound(self) -> None:
        if self._bound is not None and self._bound.look(self._stop_statements) and self._guard is not None:
            self._guard.settled()

    def _stop_statements(self) -> None:
        self._queries.stop_for_memory()
        release_memory()

    def _follow_threads(self) -> None:
        if self._bound is not None:
            self._bound.follow_threads()

    def _free_memory(self) -> None:
        self._queries.interrupt_all(
            RankmemError(
                Code.UNAVAILABLE,
                "the statement was stopped because ingest needed the memory",
                "ask for less, or try again",
            )
        )

    def _die(self, exc: BaseException) -> None:
        self._failure = exc
        self._health.enter_graceful_shutdown()
        self._collector.drain()
        self._stop.set()


def open(
    config: AggregatorConfig,
    *,
    guard: StatementGuard | None = None,
    bound: MemoryBound | None = None,
    pid: int | None = None,
) -> Aggregator:
    """Opens the database, binds the port and starts; the aggregator takes batches when this returns.

    Args:
        config: its options.
        guard: refuses statements that crashed the aggregator, and records which run; None: neither.
        bound: of this process's memory; None: it has none.
        pid: of the process that keeps it alive, for the address file; None: this one.

    Raises:
        RankmemError: CONFLICT if the database or the port is taken, and what :func:`store.open_store` raises.
    """
    store = _open_lake(config) if config.lake else open_store(config)
    try:
        aggregator = Aggregator(config, store, guard=guard, bound=bound, pid=pid)
    except BaseException:
        store.close()
        raise
    try:
        aggregator.start()
    except BaseException:
        aggregator.close(0.0)
        raise
    return aggregator


def _open_lake(config: AggregatorConfig) -> LakeStore:
    """Opens a lake to write, if its store can be trusted with that.

    Raises:
        RankmemError: UNSUPPORTED for a store that overwrites, or without deltalake.
    """
    # Loaded only now: deltalake is an extra, and takes a tenth of a second.
    from rankmem_aggregator.lake.moves import check_store
    from rankmem_aggregator.lake.served import LakeStore

    store = LakeStore(config)
    try:
        check_store(store.files, uuid.uuid4().hex)
    except BaseException:
        store.close()
        raise
    return store


def _grpc_server(threads: futures.ThreadPoolExecutor, tokens: Tokens, calls_max: int) -> grpc.Server:
    return grpc.server(
        threads,
        maximum_concurrent_rpcs=calls_max,  # more would wait for a thread unnoticed: they are refused
        interceptors=[
            ReadMessages(),
            FirstMessages(),
            *([TokenInterceptor(tokens)] if tokens.are_asked else []),
        ],
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.so_reuseport", 0),  # a second aggregator on the port is an error, not a lottery
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MIN_MS),
        ],
    )


def _bind(server: grpc.Server, config: AggregatorConfig) -> int:
    listen = config.listen
    try:
        if config.tls_cert is not None and config.tls_key is not None:
            credentials = server_credentials(config.tls_cert, config.tls_key, config.tls_client_ca)
            port = server.add_secure_port(listen, credentials)
        else:
            port = server.add_insecure_port(listen)
    except RuntimeError as exc:
        raise RankmemError(
            Code.CONFLICT,
            f"cannot listen on {listen}: {exc}",
            "give another --listen; port 0 takes a free one",
        ) from exc
    if port == 0:
        raise RankmemError(
            Code.CONFLICT, f"cannot listen on {listen}", "give another --listen; port 0 takes a free one"
        )
    return port
