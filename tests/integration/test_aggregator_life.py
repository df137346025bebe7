"""The aggregator's life: killed, drained, embedded, in each other's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from file_size_limit import no_file_grows
from ingest_client import TIMEOUT_S, IngestClient
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.store.address import address_path, read_address
from rankmem_protos.errors import Code, RankmemError
from sample_batches import RankSource


def config_of(path: Path, **options: object) -> AggregatorConfig:
    return AggregatorConfig.from_environment({}, database_path=path, listen="127.0.0.1:0", **options)


class Process:
    """``python -m rankmem_aggregator`` in a process of its own."""

    def __init__(self, path: Path) -> None:
        environment = os.environ | {"RANKMEM_DB": str(path), "RANKMEM_LISTEN": "127.0.0.1:0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankmem_aggregator"], env=environment, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if " serving " in line:
                break
        entry = read_address(path)
        assert entry is not None
        assert entry.pid == self.process.pid
        self.address = entry.address

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mem.duckdb"


@pytest.fixture
def process(path: Path) -> Iterator[Process]:
    started = Process(path)
    yield started
    if started.process.poll() is None:
        started.end(signal.SIGKILL)


def progress_of(path: Path) -> list[tuple[int, int, int]]:
    with duckdb.connect(path) as connection:
        return connection.execute(
            "SELECT rank, last_sequence, (SELECT max(seq) FROM memory_event e WHERE e.rank = p.rank) "
            "FROM ingest_progress p ORDER BY rank"
        ).fetchall()


def test_after_kill_9_every_acknowledged_row_is_there_and_none_twice(process: Process, path: Path) -> None:
    sources = [RankSource(rank=rank) for rank in range(2)]
    acknowledged: dict[str, int] = {}
    with IngestClient(process.address) as client:
        for source in sources:
            client.open(source)
        for _ in range(40):
            for source in sources:
                client.send(batch=source.batch(200))
        for _ in range(25):  # killed in the middle of its work
            ack = client.reply().ack
            acknowledged[ack.spool_id] = ack.last_sequence
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
    again = [RankSource(rank=rank) for rank in range(2)]
    with server.open(config_of(path)) as aggregator, IngestClient(aggregator.address) as client:
        for source in again:
            assert client.open(source) >= acknowledged.get(source.spool_id, -1)
        for source in again:
            for _ in range(40):
                client.send(batch=source.batch(200))
        client.acks(80)
    assert [last for _, last, _ in progress_of(path)] == [source.next_sequence - 1 for source in again]
    with duckdb.connect(path) as connection:
        twice = connection.execute(
            "SELECT count(*) FROM (SELECT rank, seq FROM memory_event GROUP BY ALL HAVING count(*) > 1)"
        ).fetchone()
        assert twice == (0,)
        rows = connection.execute(
            "SELECT rank, count(*) FROM memory_event GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    oracle = [RankSource(rank=rank) for rank in range(2)]
    assert rows == [(s.rank, sum(s.rows(200)["memory_event"].num_rows for _ in range(40))) for s in oracle]


def test_a_signal_drains_what_was_received_and_leaves_one_plain_file(process: Process, path: Path) -> None:
    source = RankSource()
    with IngestClient(process.address) as client:
        client.open(source)
        for _ in range(10):
            client.send(batch=source.batch(100))
        client.acks(1)
        assert process.end(signal.SIGTERM) == 0
        last = client.rest()
        acknowledged = [reply.ack.last_sequence for reply in last if reply.WhichOneof("body") == "ack"]
        (refusal,) = (reply.refusal for reply in last if reply.WhichOneof("body") == "refusal")
        assert (refusal.code, refusal.fatal) == ("unavailable", True)
        assert client.error is not None
        assert client.error.code() is grpc.StatusCode.UNAVAILABLE
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["mem.duckdb"]
    ((_, stored, _),) = progress_of(path)
    assert acknowledged == sorted(acknowledged)
    assert stored >= max(acknowledged, default=0)


def test_an_embedded_aggregator_leaves_no_thread_and_no_address(path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    source = RankSource()
    aggregator = server.open(config_of(path))
    assert address_path(path).exists()
    with IngestClient(aggregator.address) as client:
        client.open(source)
        client.send(batch=source.batch(100))
        client.acks(1)
        names = {thread.name for thread in threading.enumerate()} - before
        assert any(name.startswith("rankmem-writer") for name in names)
        assert any(name.startswith("rankmem-ingest-") for name in names)
    assert aggregator.close(TIMEOUT_S) is True
    assert aggregator.close(TIMEOUT_S) is True
    for thread in threading.enumerate():
        if thread.name.startswith("rankmem-"):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), thread.name
    assert not address_path(path).exists()


def test_serve_returns_when_stopped_from_another_thread(path: Path) -> None:
    with server.open(config_of(path)) as aggregator:
        serving = threading.Thread(target=aggregator.serve)
        serving.start()
        aggregator.stop()
        serving.join(TIMEOUT_S)
        assert not serving.is_alive()


def test_a_dead_writer_stops_the_whole_service(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rows: object) -> None:
        raise duckdb.FatalException("database has been invalidated")

    aggregator = server.open(config_of(path))
    monkeypatch.setattr(aggregator.store, "write", broken)
    source = RankSource()
    with IngestClient(aggregator.address) as client:
        client.open(source)
        client.send(batch=source.batch(100))
        with pytest.raises(RankmemError, match="invalidated") as caught:
            aggregator.serve()
        assert caught.value.code is Code.INTERNAL
        assert aggregator.close(1.0) is False
        assert not any(reply.WhichOneof("body") == "ack" for reply in client.rest())


def test_a_second_aggregator_on_the_file_or_the_port_is_told_who_has_it(path: Path) -> None:
    with server.open(config_of(path)) as aggregator:
        with pytest.raises(RankmemError, match=aggregator.address) as same_file:
            server.open(config_of(path))
        assert same_file.value.code is Code.CONFLICT
        other = AggregatorConfig(database_path=path.with_name("other.duckdb"), listen=aggregator.address)
        with pytest.raises(RankmemError, match=f"cannot listen on {aggregator.address}") as same_port:
            server.open(other)
        assert same_port.value.code is Code.CONFLICT
        assert not address_path(other.database_path).exists()
        assert read_address(path) is not None


def test_health_and_reflection_answer(path: Path) -> None:
    with server.open(config_of(path)) as aggregator, grpc.insecure_channel(aggregator.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "rankmem.v1.Collector", "rankmem.v1.Query"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        names = set(ProtoReflectionDescriptorDatabase(channel).get_services())
        assert {"rankmem.v1.Collector", "rankmem.v1.Query", "grpc.health.v1.Health"} <= names


def test_a_database_that_duckdb_gave_up_is_served_again_without_a_restart(tmp_path: Path) -> None:
    config = AggregatorConfig(database_path=tmp_path / "given-up.duckdb", listen="127.0.0.1:0")
    source = RankSource(rank=0)
    with server.open(config) as running, IngestClient(running.address) as client:
        client.open(source)
        client.send(batch=source.batch(100))
        client.acks(1)
        with no_file_grows(), pytest.raises(duckdb.IOException, match="invalidated"):
            running.store.instance.connection.execute("CHECKPOINT")
        with connect(running.address) as queries, pytest.raises(RankmemError) as caught:
            queries.sql("SELECT count(*) AS n FROM memory_event")
        assert caught.value.code is Code.UNAVAILABLE
        client.send(batch=source.batch(100))
        client.acks(1)
        with connect(running.address) as queries:
            (row,) = queries.sql(
                "SELECT count(DISTINCT seq) AS n, count(*) AS m FROM memory_event"
            ).to_pylist()
        assert row["n"] == row["m"] > 100
