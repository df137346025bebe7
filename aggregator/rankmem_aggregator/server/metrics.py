"""The aggregator's figures in Prometheus' text format, on an HTTP port of their own.

Stage: beside ingest. In: existing counters; out: an answer to each scrape, made on request, so that an
aggregator without scrapes pays nothing. Labels are few and fixed (outcome, place, code), and every value of
them is there from the start; sessions and ranks are named only where ``--metrics-ranks`` asks for it. Few
connections at a time, each with a deadline. ``prometheus_client`` is imported here alone, and only where
metrics are served.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import HTTPServer
from typing import Final

from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rankmem_aggregator.host_port import split_address
from rankmem_aggregator.ingest.batch_writer import BatchWriter
from rankmem_aggregator.ingest.counters import Distribution
from rankmem_aggregator.retention.limits import NS_PER_S
from rankmem_aggregator.server.watch import Condition
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

Family = Metric
"""A metric with its values, of all labels."""

REQUEST_TIMEOUT_S: Final = 5.0
"""For a scraper to send its request and to read the answer, 10 KiB, from first byte to last."""
CONNECTIONS_MAX: Final = 16
"""Open at a time; for one more the oldest is closed, which is no scrape: that takes milliseconds."""
CLOSE_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """Where the figures come from."""

    writer: BatchWriter
    condition: Callable[[], Condition]
    streams_open: Callable[[], int]
    queries_running: Callable[[], int]
    version: str = ""


class RankmemCollector(Collector):
    """All metrics of one aggregator, as of the moment."""

    def __init__(self, sources: MetricSources) -> None:
        self.version = sources.version
        self._sources = sources
        self._started_s = time.time()

    def collect(self) -> Iterator[Metric]:
        """The metrics, each with its one-line help."""
        yield InfoMetricFamily("rankmem", "The aggregator.", {"version": self._sources.version})
        yield from self._totals()
        yield from self._now()
        if self._sources.writer.rank_memory.shown_max:
            yield from self._rank_memory()
        writer = self._sources.writer
        yield _histogram("rankmem_commit_seconds", "A commit, from begin to durable.", writer.commit_seconds)
        yield _histogram(
            "rankmem_lag_seconds", "From a batch's last event to its commit.", writer.lag_seconds
        )

    def _totals(self) -> Iterator[Metric]:
        counters = self._sources.writer.counters
        yield _counter("rankmem_events", "Allocator events stored.", counters.events)
        yield _counter("rankmem_rows", "Rows stored, all tables.", counters.rows)
        yield _counter("rankmem_wire_bytes", "Bytes of stored batches as received.", counters.wire_bytes)
        yield _counter("rankmem_decoded_bytes", "The same, decoded.", counters.decoded_bytes)
        yield _counter("rankmem_commits", "Transactions with rows.", counters.groups)
        yield _counter("rankmem_commit_retries", "Commits tried again: no disk, no memory.", counters.retries)
        yield _counter(
            "rankmem_sessions_pruned", "Sessions deleted for limits.", self._sources.writer.num_pruned
        )
        batches = CounterMetricFamily(
            "rankmem_batches", "Batches by what became of them.", labels=["outcome"]
        )
        batches.add_metric(["stored"], counters.batches)
        batches.add_metric(["duplicate"], counters.duplicates)
        batches.add_metric(["refused"], counters.refused)
        yield batches
        errors = CounterMetricFamily("rankmem_errors", "Refused requests.", labels=["place", "code"])
        for (place, code), count in sorted(self._sources.writer.errors.counts().items()):
            errors.add_metric([place, code.value], count)
        yield errors
        yield _counter(
            "rankmem_damaged",
            "Messages of shippers with a wrong checksum.",
            self._sources.writer.errors.num_damaged,
        )

    def _rank_memory(self) -> Iterator[Metric]:
        """Of the ranks that hold most, and of how many: a scrape says what it leaves out."""
        shown = self._sources.writer.rank_memory.shown()
        yield _gauge("rankmem_rank_devices", "Devices of ranks alive, all of them.", shown.num_alive)
        yield _gauge("rankmem_rank_devices_shown", "Those with series of their own.", len(shown.held))
        yield _gauge("rankmem_ranks_used_bytes", "Held on all devices of ranks alive.", shown.used_bytes)
        labels = ["session", "rank", "device"]
        used = GaugeMetricFamily(
            "rankmem_rank_used_bytes", "Allocated by a rank on a device; on cpu requested.", labels=labels
        )
        peak = GaugeMetricFamily(
            "rankmem_rank_peak_bytes", "Its highest since this aggregator heard of the rank.", labels=labels
        )
        reserved = GaugeMetricFamily(
            "rankmem_rank_reserved_bytes", "Held by its allocator from the device.", labels=labels
        )
        for device, held in shown.held.items():
            names = [device.session_id, str(device.rank), device.device]
            used.add_metric(names, held.used_bytes)
            peak.add_metric(names, held.peak_bytes)
            if held.reserved_bytes is not None:
                reserved.add_metric(names, held.reserved_bytes)
        yield from (used, peak, reserved)

    def _now(self) -> Iterator[Metric]:
        writer, condition = self._sources.writer, self._sources.condition()
        alive = writer.liveness.alive()
        yield _gauge("rankmem_serving", "1 while batches can be stored.", int(condition.is_serving))
        yield _gauge("rankmem_sessions", "Sessions with a rank that is alive.", alive.sessions)
        yield _gauge("rankmem_ranks_alive", "Ranks heard of within 30 s and not ended.", alive.ranks)
        yield _gauge("rankmem_lag_max_seconds", "Longest lag of a rank alive.", alive.lag_ns / NS_PER_S)
        yield _gauge("rankmem_queue_batches", "Decoded batches that wait.", len(writer.queue))
        yield _gauge("rankmem_queue_bytes", "Their bytes.", writer.queue.size_bytes)
        yield _gauge("rankmem_streams", "Shippers connected.", self._sources.streams_open())
        yield _gauge("rankmem_queries", "Client statements running.", self._sources.queries_running())
        yield _gauge("rankmem_database_bytes", "The database file.", condition.database_bytes)
        yield _gauge("rankmem_log_bytes", "Its write-ahead log.", condition.log_bytes)
        yield _gauge("rankmem_disk_free_bytes", "Free beside the database.", condition.disk_free_bytes)
        yield _gauge("rankmem_resident_bytes", "Memory of the aggregator.", condition.rss_bytes)
        yield _gauge("rankmem_start_time_seconds", "When it was started.", self._started_s)


class MetricsServer:
    """Answers scrapes until it is closed.

    Args:
        listen: HOST:PORT; port 0 takes a free one.
        collector: the metrics.

    Raises:
        RankmemError: INVALID for a bad address, CONFLICT where the port is taken.
    """

    def __init__(self, listen: str, collector: Collector) -> None:
        host, port = split_address(listen)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            self._server = _Server((host, port), _handler(registry))
        except OSError as exc:
            raise RankmemError(
                Code.CONFLICT,
                f"cannot serve metrics at {listen}: {exc.strerror}",
                "give another --metrics; port 0 takes a free one",
            ) from exc
        self.address = f"{host}:{self._server.server_address[1]}"
        """HOST:PORT with the port that was bound."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_POLL_S,), name="rankmem-metrics", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()
        logger.info("metrics at http://%s/metrics", self.address)

    def close(self) -> None:
        """Ends the thread and closes the port. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(HTTPServer):
    """A thread a connection, until its deadline: a silent client cannot hold up scrapes."""

    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[MetricsHandler]) -> None:
        self._lock = threading.Lock()
        self._open: deque[socket.socket] = deque()
        super().__init__(address, handler)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        with self._lock:
            self._open.append(request)
            oldest = self._open.popleft() if len(self._open) > CONNECTIONS_MAX else None
        if oldest is not None:
            _cut(oldest)
        threading.Thread(
            target=self._answer, args=(request, client_address), name="rankmem-scrape", daemon=True
        ).start()

    def _answer(self, request: socket.socket, client_address: object) -> None:
        timer = threading.Timer(REQUEST_TIMEOUT_S, _cut, [request])
        timer.name, timer.daemon = "rankmem-scrape-timer", True
        timer.start()
        try:
            self.finish_request(request, client_address)
        except OSError:
            logger.debug("a scrape by %s failed", client_address, exc_info=True)
        finally:
            timer.cancel()
            with self._lock, contextlib.suppress(ValueError):
                self._open.remove(request)
            self.shutdown_request(request)


def _cut(connection: socket.socket) -> None:
    """Ends reads and writes of the connection. Any thread; also after its end."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _handler(registry: CollectorRegistry) -> type[MetricsHandler]:
    class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]  # made at run time
        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a scrape every few seconds is not worth a line."""

    return Handler


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(name, documentation, value=value)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _histogram(name: str, documentation: str, found: Distribution) -> Metric:
    counts = found.cumulative()
    bounds = [*(str(float(bound)) for bound in found.bounds), "+Inf"]
    return HistogramMetricFamily(
        name, documentation, buckets=list(zip(bounds, counts, strict=True)), sum_value=found.sum
    )
