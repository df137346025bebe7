"""Metrics by OTLP: a collector gets what a scrape shows; one that is away costs nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from ingest_client import IngestClient
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_protos.errors import Code, RankmemError
from sample_batches import RankSource
from waiting import until

CHANGES = (
    "rankmem_resident_bytes",
    "rankmem_log_bytes",
    "rankmem_disk_free_bytes",
    "rankmem_lag_max_seconds",
)
"""From one look to the next, whatever is stored."""
Values = dict[tuple[str, tuple[tuple[str, str], ...]], Any]


class Receiver(ThreadingHTTPServer):
    """A collector's receiver: keeps the requests and the paths and headers they came with."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, ExportMetricsServiceRequest]] = []
        super().__init__(("127.0.0.1", 0), Receiving)

    def latest(self) -> ExportMetricsServiceRequest:
        return self.requests[-1][2]


class Receiving(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(  # type: ignore[attr-defined]
            (self.path, self.headers["x-team"], ExportMetricsServiceRequest.FromString(body))
        )
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(0.05,))
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


def config_of(path: Path, url: str, **options: object) -> AggregatorConfig:
    return AggregatorConfig.from_environment(
        {}, database_path=path, listen="127.0.0.1:0", otlp=url, otlp_interval_s=1.0, **options
    )


def values_of(request: ExportMetricsServiceRequest) -> Values:
    found: Values = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        assert metric.unit == ""
        points = getattr(metric, metric.WhichOneof("data")).data_points
        for point in points:
            labels = tuple(sorted((each.key, each.value.string_value) for each in point.attributes))
            if metric.WhichOneof("data") == "histogram":
                assert (point.HasField("min"), point.HasField("max")) == (False, False)
                found[metric.name, labels] = (
                    tuple(point.explicit_bounds), tuple(point.bucket_counts), point.count, point.sum
                )  # fmt: skip
            else:
                found[metric.name, labels] = getattr(point, point.WhichOneof("value"))
    return found


def scraped(address: str) -> Values:
    """The same by a scrape, each histogram put together from its samples."""
    found: Values = {}
    with urlopen(f"http://{address}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("rankmem_") or family.name == "rankmem_info":
            continue  # what Python says of the process; the version is the resource's
        if family.type != "histogram":
            for sample in family.samples:
                found[family.name, tuple(sorted(sample.labels.items()))] = sample.value
            continue
        totals = [int(each.value) for each in family.samples if "le" in each.labels]
        bounds = tuple(float(each.labels["le"]) for each in family.samples if "le" in each.labels)[:-1]
        between = tuple(count - before for before, count in zip([0, *totals], totals, strict=False))
        (total,) = (each.value for each in family.samples if each.name.endswith("_sum"))
        found[family.name, ()] = (bounds, between, totals[-1], total)
    return found


def test_a_collector_gets_what_a_scrape_shows(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=memory")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    url = f"http://127.0.0.1:{receiver.server_address[1]}"
    source = RankSource()
    config = config_of(tmp_path / "m.duckdb", url, metrics="127.0.0.1:0", metrics_ranks=4)
    with server.open(config) as aggregator, IngestClient(aggregator.address) as client:
        client.open(source)
        client.send(batch=source.batch(300))
        client.acks(1)
        events = scraped(aggregator.metrics_address)["rankmem_events", ()]
        assert events > 0
        seen = len(receiver.requests)
        until("a request after the scrape", lambda: len(receiver.requests) > seen + 1)
        sent, shown = values_of(receiver.latest()), scraped(aggregator.metrics_address)
    assert sent.keys() == shown.keys()
    steady = sent.keys() - {(name, ()) for name in CHANGES}
    assert {key: sent[key] for key in steady} == {key: shown[key] for key in steady}
    assert sent["rankmem_events", ()] == events
    path, team, request = receiver.requests[-1]
    assert (path, team) == ("/v1/metrics", "memory")
    resource = {each.key: each.value.string_value for each in request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["service.version"]) == ("rankmem", version("rankmem"))
    assert resource["service.instance.id"] == aggregator.store.facts.database_id
    assert resource["host.name"] == socket.gethostname()
    assert resource["deployment.environment"] == "test"
    sums = [each.sum for each in request.resource_metrics[0].scope_metrics[0].metrics if each.HasField("sum")]
    assert sums
    assert all(each.is_monotonic and each.aggregation_temporality == 2 for each in sums)  # cumulative


def test_what_was_stored_last_is_sent_at_the_end(tmp_path: Path, receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.server_address[1]}/custom/path"
    config = AggregatorConfig.from_environment(
        {}, database_path=tmp_path / "m.duckdb", listen="127.0.0.1:0", otlp=url, otlp_interval_s=3600.0
    )
    source = RankSource()
    with server.open(config) as aggregator:
        with IngestClient(aggregator.address) as client:
            client.open(source)
            client.send(batch=source.batch(300))
            client.acks(1)
        until("the first request", lambda: len(receiver.requests) == 1)
    assert [path for path, _, _ in receiver.requests] == ["/custom/path"] * 2
    assert values_of(receiver.latest())["rankmem_batches", (("outcome", "stored"),)] == 1


def test_a_collector_that_is_away_costs_nothing_else(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        source = RankSource()
        with server.open(config_of(tmp_path / "m.duckdb", url)) as aggregator:
            with IngestClient(aggregator.address) as client:
                client.open(source)
                client.send(batch=source.batch(300))
                client.acks(1)
            assert aggregator.close()


@pytest.mark.parametrize("url", ["collector:4318", "grpc://collector:4317", "http://"])
def test_what_is_no_address_of_http_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(RankmemError, match="not an address of HTTP") as caught:
        config_of(tmp_path / "m.duckdb", url)
    assert caught.value.code is Code.INVALID
    assert ":4318" in caught.value.hint
