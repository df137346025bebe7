"""The aggregator's metrics, sent to an OpenTelemetry collector: those of ``metrics``, by OTLP over HTTP.

Stage: beside ingest. In: what a scrape would get; out: one request every interval, from a thread of its own
that nothing waits for. Headers, certificates, compression and timeouts come from the environment variables
that all of OpenTelemetry's exporters read (``OTEL_EXPORTER_OTLP_HEADERS``, …). The packages are an extra and
imported here alone. Names as in Prometheus, without ``_total``. Source: metrics.proto of opentelemetry-proto.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rankmem_aggregator.server.metrics import Family, RankmemCollector

logger = logging.getLogger(__name__)

METRICS_PATH: Final = "/v1/metrics"
"""Of a collector, where the address names no path of its own."""
CLOSE_S: Final = 2.0
"""For the last figures at the end; then they are dropped."""


class OtlpSender:
    """Sends all metrics every interval, and once more at its end.

    A collector that is away costs the figures of that time and nothing else: the next request has the totals.

    Args:
        url: of the collector, http:// or https://; the path ``/v1/metrics`` unless it has one.
        interval_s: from one request to the next.
        collector: the metrics.
        database_id: by which a collector tells aggregators on one host apart.
    """

    def __init__(self, url: str, interval_s: float, collector: RankmemCollector, database_id: str) -> None:
        self._interval_s = interval_s
        self._collector = collector
        self._started_ns = time.time_ns()
        self._url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + METRICS_PATH
        self._exporter = OTLPMetricExporter(endpoint=self._url)
        version = collector.version
        own = {"service.name": "rankmem", "service.version": version, "service.instance.id": database_id}
        # OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win.
        self._resource = Resource({**own, "host.name": socket.gethostname()}).merge(
            OTELResourceDetector().detect()
        )
        self._scope = InstrumentationScope("rankmem", version)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankmem-otlp", daemon=True)

    def start(self) -> None:
        """Starts the thread; the first request goes at once."""
        self._thread.start()
        logger.info("metrics go to %s every %g s", self._url, self._interval_s)

    def close(self) -> None:
        """Sends what there is at the end, and ends the thread. Idempotent."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.is_set()
            try:
                self._exporter.export(self._data())  # it logs what failed
            except Exception:
                logger.exception("metrics could not be sent to %s; the aggregator goes on without", self._url)
            if not is_last:
                self._closed.wait(self._interval_s)

    def _data(self) -> export.MetricsData:
        found = list(metrics_of(self._collector.collect(), self._started_ns, time.time_ns()))
        scope = export.ScopeMetrics(scope=self._scope, metrics=found, schema_url="")
        resource = export.ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")
        return export.MetricsData(resource_metrics=[resource])


def metrics_of(families: Iterable[Family], started_ns: int, now_ns: int) -> Iterator[export.Metric]:
    """OpenTelemetry's form of Prometheus' counters, gauges and histograms that have values.

    Args:
        families: the metrics.
        started_ns: since when counters and histograms count, Unix time.
        now_ns: the time of the figures.
    """
    data: dict[str, Callable[[Family, int, int], export.DataT]] = {
        "counter": _sum, "gauge": _gauge, "histogram": _histogram
    }  # fmt: skip
    for family in families:
        if family.samples and family.type in data:
            # The unit is in the name, where Prometheus has it; one of its own would be appended to it again.
            yield export.Metric(
                name=family.name,
                description=family.documentation,
                unit="",
                data=data[family.type](family, started_ns, now_ns),
            )


def _points(family: Family, started_ns: int, now_ns: int) -> list[export.NumberDataPoint]:
    return [
        export.NumberDataPoint(
            attributes=sample.labels,
            start_time_unix_nano=started_ns,
            time_unix_nano=now_ns,
            value=sample.value,
        )
        for sample in family.samples
    ]


def _sum(family: Family, started_ns: int, now_ns: int) -> export.Sum:
    return export.Sum(
        data_points=_points(family, started_ns, now_ns),
        aggregation_temporality=export.AggregationTemporality.CUMULATIVE,
        is_monotonic=True,
    )


def _gauge(family: Family, started_ns: int, now_ns: int) -> export.Gauge:
    return export.Gauge(data_points=_points(family, started_ns, now_ns))


def _histogram(family: Family, started_ns: int, now_ns: int) -> export.Histogram:
    """Of one without labels but ``le``: Prometheus counts up to each bound, OTLP between two."""
    at_most = [(float(each.labels["le"]), int(each.value)) for each in family.samples if "le" in each.labels]
    counts = [count for _, count in at_most]
    point = export.HistogramDataPoint(
        attributes={},
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=counts[-1],
        sum=next(each.value for each in family.samples if each.name.endswith("_sum")),
        bucket_counts=[count - before for before, count in zip([0, *counts], counts, strict=False)],
        explicit_bounds=[bound for bound, _ in at_most[:-1]],
        min=None,  # type: ignore[arg-type]  # not known; left out of the message
        max=None,  # type: ignore[arg-type]
    )
    return export.Histogram(
        data_points=[point], aggregation_temporality=export.AggregationTemporality.CUMULATIVE
    )
