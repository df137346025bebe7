"""Metrics: each figure against what was stored, by an HTTP scrape; and no name of a user's in a label."""

from __future__ import annotations

import http.client
import re
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingest_client import IngestClient
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.counters import Distribution
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server import metrics
from rankmem_protos.errors import Code, RankmemError
from sample_batches import RankSource

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def config_of(path: Path, **options: object) -> AggregatorConfig:
    options = {"metrics": "127.0.0.1:0"} | options
    return AggregatorConfig.from_environment({}, database_path=path, listen="127.0.0.1:0", **options)


def scrape(address: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/metrics")
    reply = connection.getresponse()
    assert reply.status == 200
    text = reply.read().decode()
    connection.close()
    return text


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_says_what_was_stored_refused_and_how_fast(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    source, oracle = RankSource(session_id="01NAMEOFUSER"), RankSource(session_id="01NAMEOFUSER")
    with server.open(config_of(path)) as aggregator:
        before = samples(scrape(aggregator.metrics_address))
        assert before["rankmem_events_total", ()] == 0
        assert before["rankmem_serving", ()] == 1
        with IngestClient(aggregator.address) as client:
            client.open(source)
            batches = [source.batch(300) for _ in range(3)]
            for batch in batches:
                client.send(batch=batch)
            client.acks(3)
            client.send(batch=batches[0])  # again
            client.acks(1)
            source.batch(300)  # is never sent
            client.send(batch=source.batch(300))
            assert client.reply().refusal.code == "conflict"
            text = scrape(aggregator.metrics_address)
        after = samples(text)
    assert after["rankmem_events_total", ()] == sum(
        oracle.rows(300)["memory_event"].num_rows for _ in range(3)
    )
    assert after["rankmem_batches_total", (("outcome", "stored"),)] == 3
    assert after["rankmem_batches_total", (("outcome", "duplicate"),)] == 1
    assert after["rankmem_batches_total", (("outcome", "refused"),)] == 1
    assert after["rankmem_errors_total", (("code", "conflict"), ("place", "ingest"))] == 1
    assert after["rankmem_wire_bytes_total", ()] == sum(
        len(entry.arrow_ipc) for batch in batches for entry in batch.tables
    )
    assert after["rankmem_ranks_alive", ()] == 1
    assert after["rankmem_sessions", ()] == 1
    assert after["rankmem_streams", ()] == 1
    assert after["rankmem_commit_seconds_count", ()] == after["rankmem_commits_total", ()] > 0
    assert after["rankmem_lag_seconds_count", ()] == 3
    assert after["rankmem_database_bytes", ()] > 0
    assert "01NAMEOFUSER" not in text
    labels = {name for line in text.splitlines() for name in re.findall(r'(\w+)="', line)}
    assert labels <= {"outcome", "code", "place", "le", "version"}


def test_a_final_batch_ends_a_rank(tmp_path: Path) -> None:
    source = RankSource()
    with server.open(config_of(tmp_path / "m.duckdb")) as aggregator:
        with IngestClient(aggregator.address) as client:
            client.open(source)
            client.send(batch=source.batch(100, final=True))
            client.acks(1)
        assert samples(scrape(aggregator.metrics_address))["rankmem_ranks_alive", ()] == 0


def test_memory_of_ranks_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    sources = [RankSource(rank=rank) for rank in range(3)]
    with (
        server.open(config_of(tmp_path / "m.duckdb", metrics_ranks=2)) as aggregator,
        IngestClient(aggregator.address) as client,
    ):
        for source in sources:
            client.open(source)
            client.send(batch=source.batch(300))
            client.acks(1)
        found = samples(scrape(aggregator.metrics_address))
    highest = sorted(sources, key=lambda source: -source.requested)[:2]
    assert {key: value for key, value in found.items() if key[0] == "rankmem_rank_used_bytes"} == {
        (
            "rankmem_rank_used_bytes",
            (("device", "cpu"), ("rank", str(source.rank)), ("session", source.session_id)),
        ): source.requested
        for source in highest
    }
    assert found["rankmem_rank_devices", ()] == 3
    assert found["rankmem_rank_devices_shown", ()] == 2
    assert found["rankmem_ranks_used_bytes", ()] == sum(source.requested for source in sources)


def test_each_value_of_a_label_is_there_from_the_start(tmp_path: Path) -> None:
    with server.open(config_of(tmp_path / "m.duckdb")) as aggregator:
        found = samples(scrape(aggregator.metrics_address))
    for place in ("ingest", "query"):
        for code in Code:
            assert found["rankmem_errors_total", (("code", code.value), ("place", place))] == 0
    assert not [name for name, _ in found if name.startswith("rankmem_rank_")]


def test_a_taken_port_is_said_and_leaves_nothing_open(tmp_path: Path) -> None:
    with server.open(config_of(tmp_path / "a.duckdb")) as first:
        with pytest.raises(RankmemError, match="cannot serve metrics") as caught:
            server.open(config_of(tmp_path / "b.duckdb", metrics=first.metrics_address))
        assert caught.value.code is Code.CONFLICT
    with server.open(config_of(tmp_path / "b.duckdb", metrics="")) as second:
        assert second.metrics_address == ""


def test_values_fall_into_the_lowest_bound_that_holds_them() -> None:
    found = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.observe(value)
    assert (found.cumulative(), found.sum) == ([2, 3, 4], 12.0)


def test_who_connects_and_says_nothing_keeps_no_scrape_and_no_end(tmp_path: Path) -> None:
    with server.open(config_of(tmp_path / "idle.duckdb")) as aggregator:
        host, port = aggregator.metrics_address.split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(2 * metrics.CONNECTIONS_MAX)]
        for connection in idle[::2]:
            connection.sendall(b"GET /metr")
        assert samples(scrape(aggregator.metrics_address))["rankmem_serving", ()] == 1
    for connection in idle:
        connection.close()


def test_a_request_that_never_ends_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT_S", 0.05)
    with server.open(config_of(tmp_path / "slow.duckdb")) as aggregator:
        host, port = aggregator.metrics_address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n")
            assert connection.recv(1) == b""  # the end, not a time out
