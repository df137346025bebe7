"""Health: NOT_SERVING while nothing can be stored, SERVING again when it can."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ingest_client import TIMEOUT_S, IngestClient
from rankmem_aggregator import logs
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server.watch import Watch
from rankmem_aggregator.store.disk import Disk
from rankmem_protos.errors import RankmemError
from rankmem_protos.query_pb2 import SqlRequest
from rankmem_protos.query_pb2_grpc import QueryStub
from sample_batches import RankSource

Status = health_pb2.HealthCheckResponse


@pytest.fixture
def aggregator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[server.Aggregator]:
    monkeypatch.setattr("rankmem_aggregator.server.watch.INTERVAL_S", 0.02)
    config = AggregatorConfig.from_environment({}, database_path=tmp_path / "h.duckdb", listen="127.0.0.1:0")
    with server.open(config) as opened:
        yield opened


def watch_health(channel: grpc.Channel) -> Iterator[int]:
    """The statuses as the aggregator tells them, one for each change."""
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    for reply in call:
        yield reply.status


def test_a_full_disk_is_not_serving_until_there_is_room_and_the_batch_is_stored_once(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RankSource()
    with (
        grpc.insecure_channel(aggregator.address) as channel,
        IngestClient(aggregator.address) as client,
    ):
        statuses = watch_health(channel)
        assert next(statuses) == Status.SERVING
        client.open(source)
        with monkeypatch.context() as full:
            full.setattr(Disk, "free_bytes", lambda disk: 0)
            client.send(batch=source.batch(100))
            assert next(statuses) == Status.NOT_SERVING
            assert aggregator.counters.batches == 0
        client.acks(1)
        assert next(statuses) == Status.SERVING
    assert (aggregator.counters.batches, aggregator.counters.duplicates) == (1, 0)


def test_a_full_disk_is_noticed_before_a_batch_meets_it(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grpc.insecure_channel(aggregator.address) as channel:
        statuses = watch_health(channel)
        assert next(statuses) == Status.SERVING
        with monkeypatch.context() as full:
            full.setattr(Disk, "free_bytes", lambda disk: 0)
            assert next(statuses) == Status.NOT_SERVING
        assert next(statuses) == Status.SERVING


def test_a_shipper_that_waits_is_told_why_and_acknowledged_in_the_end(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_aggregator.server.ingest_call.BUSY_EVERY_S", 0.0)
    source = RankSource()
    with IngestClient(aggregator.address) as client:
        client.open(source)
        with monkeypatch.context() as full:
            full.setattr(Disk, "free_bytes", lambda disk: 0)
            client.send(batch=source.batch(100))
            assert "disk" in client.reply().busy.reason
        replies = iter(client.reply, None)
        ack = next(reply.ack for reply in replies if reply.WhichOneof("body") == "ack")
        assert ack.last_sequence == source.next_sequence - 1


def test_over_its_memory_one_new_shipper_comes_in_a_second_and_those_there_go_on(tmp_path: Path) -> None:
    config = AggregatorConfig.from_environment(
        {}, database_path=tmp_path / "m.duckdb", listen="127.0.0.1:0", memory_budget_bytes=1
    )
    source = RankSource()
    with server.open(config) as opened:
        opened._watch.close()
        condition = opened._watch.look()
        with IngestClient(opened.address) as client, IngestClient(opened.address, greet=False) as late:
            late.rest()
            assert late.error is not None
            assert late.error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "more than 1" in (late.error.details() or "")
            client.open(source)
            for _ in range(5):
                client.send(batch=source.batch(100))
            assert client.acks(5)[-1] == source.next_sequence - 1
            opened._enforce_limits(condition)
            with IngestClient(opened.address) as again:
                assert again.welcome.database_id


def test_a_writer_that_has_ended_is_not_serving(aggregator: server.Aggregator) -> None:
    writer = aggregator._writer
    watch = Watch(aggregator.store, writer, lambda condition: None)
    assert watch.look().is_serving
    writer.close(TIMEOUT_S)
    assert watch.look().reason == "the writer has ended"


@pytest.mark.parametrize("error", [ValueError("nobody thought of this"), MemoryError()])
def test_without_its_watch_the_aggregator_ends_and_says_why(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nobody else ends silent streams, holds the bound on memory, or tells shippers why they wait."""

    def breaking() -> None:
        raise error

    monkeypatch.setattr(aggregator._collector, "end_idle", breaking)
    serving = threading.Timer(TIMEOUT_S, aggregator.stop)
    serving.start()
    with pytest.raises(RankmemError, match="the aggregator stopped") as caught:
        aggregator.serve()
    serving.cancel()
    assert caught.value.__cause__ is error


def test_json_lines_are_whole_whatever_a_name_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own are left alone
    logs.configure("json")
    logging.getLogger("rankmem_aggregator.x").info("shipper %s", "a\nb\x1b[31m\u202e")
    logging.getLogger("other").info("not ours")
    logs.configure("text")
    logging.getLogger("rankmem_aggregator.x").info("shipper %s", "a\nb\x1b[31m")
    json_line, text_line = capsys.readouterr().err.splitlines()
    said = json.loads(json_line)
    assert (said["level"], said["logger"], said["message"]) == (
        "info", "rankmem_aggregator.x", "shipper a\nb\x1b[31m\u202e",
    )  # fmt: skip
    assert json_line.isascii()
    assert text_line.endswith("rankmem_aggregator.x shipper a\\nb\\x1b[31m")


def test_a_client_that_stops_reading_gives_its_place_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_aggregator.server.services.READ_GRACE_S", 0.1)
    config = AggregatorConfig.from_environment(
        {}, database_path=tmp_path / "q.duckdb", listen="127.0.0.1:0", query_timeout_s=0.5
    )
    with server.open(config) as opened, grpc.insecure_channel(opened.address) as channel:
        call = QueryStub(channel).Sql(SqlRequest(sql="SELECT hash(i) AS a FROM range(30000000) AS t(i)"))
        next(call)  # and no more is read: gRPC's window is full
        assert opened._queries.running == 1
        for _ in range(int(TIMEOUT_S / 0.01)):
            if not opened._queries.running:
                break
            threading.Event().wait(0.01)
        assert opened._queries.running == 0
        with pytest.raises(grpc.RpcError):
            list(call)
