"""No client keeps the others out: places for each address, and an end to those that say nothing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ingest_client import TIMEOUT_S, IngestClient
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server import ingest_call as stream
from rankmem_aggregator.server import peers
from rankmem_aggregator.server.peers import host_of
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code
from rankmem_ship.sender import Sender
from sample_batches import RankSource

FROM_HERE = "127.0.0.1"
STATUS = "/rankmem.v1.Query/Status"
INGEST = "/rankmem.v1.Collector/Ingest"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

_is_over = threading.Event()
"""Ends the requests that wait, whose threads would live on in the tests after this one."""


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[server.Aggregator]:
    _is_over.clear()
    config = AggregatorConfig(
        database_path=tmp_path / "mem.duckdb",
        listen="127.0.0.1:0",
        max_streams=8,
        max_streams_per_peer=3,
        group_wait_s=0.0,
        group_interval_s=0.0,
    )
    with server.open(config) as running:
        yield running
    _is_over.set()


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:41234", "10.0.0.7"),
        ("ipv6:%5B::1%5D:41234", "::/64"),
        ("ipv6:[2001:db8:1:2:aaaa::7]:41234", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:bbbb::9%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:[fe80::1%25eth0]:5", "fe80::/64"),
        ("ipv6:[::ffff:10.0.0.7]:5", "10.0.0.7"),
        ("unix:/run/x", "unix"),
        ("", ""),
    ],
)
def test_a_caller_is_known_by_its_host(peer: str, host: str) -> None:
    assert host_of(peer) == host


class Call:
    """A call that stays open."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise PermissionError(details)

    def set_trailing_metadata(self, metadata: object) -> None:
        pass


def test_a_refused_caller_is_not_remembered() -> None:
    places = peers.CallSlots("calls", 2)
    calls = [Call(f"ipv4:10.0.0.{number}:7") for number in range(100)]
    with ExitStack() as open_calls:
        for call in calls[:2]:
            open_calls.enter_context(places.taken(call))  # type: ignore[arg-type]
        for call in calls[2:]:
            with pytest.raises(PermissionError, match="2 at once, 1 a host"), places.taken(call):  # type: ignore[arg-type]
                pass
        assert len(places._taken) == 2
    assert not places._taken


def test_one_address_has_its_share_of_the_places_and_is_told_so(aggregator: server.Aggregator) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(IngestClient(aggregator.address)) for _ in range(3)]
        refused = opened.enter_context(IngestClient(aggregator.address, greet=False))
        assert refused.rest() == []
        assert refused.error is not None
        assert refused.error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"3 shippers are connected from {FROM_HERE}" in refused.error.details()
        assert ("rankmem-hint", "raise --max-streams-per-peer") in [
            (name, hint.partition(":")[0]) for name, hint in refused.error.trailing_metadata()
        ]
        clients[0].end()
        opened.enter_context(IngestClient(aggregator.address))


def test_a_refused_shipper_passes_on_why(aggregator: server.Aggregator) -> None:
    wake = threading.Event()
    refused = Sender(aggregator.address, Credentials(), "host-a", wake)
    with ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(IngestClient(aggregator.address))
        while refused.error is None:
            refused.poll()
            wake.wait(0.05)
    refused.close()
    assert refused.error.code is Code.EXHAUSTED
    assert f"3 shippers are connected from {FROM_HERE}" in refused.error.message
    assert "--max-streams-per-peer" in refused.error.hint


def test_places_that_one_address_cannot_have_are_there_for_others(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(IngestClient(aggregator.address))
        monkeypatch.setattr("rankmem_aggregator.server.services.host_of", lambda peer: "10.0.0.7")
        assert opened.enter_context(IngestClient(aggregator.address)).welcome.database_id


def _silent_for(aggregator: server.Aggregator, seconds: float) -> None:
    for each in aggregator._collector._calls:
        each._last_message_s -= seconds


@pytest.mark.parametrize("greet", [True, False])
def test_a_stream_that_says_nothing_is_ended_and_told_why(aggregator: server.Aggregator, greet: bool) -> None:
    limit_s = aggregator.config.stream_idle_s if greet else stream.GREETING_TIMEOUT_S
    with IngestClient(aggregator.address, greet=greet) as client:
        while not aggregator._collector.num_calls:
            pass
        _silent_for(aggregator, limit_s + 1)
        (refusal,) = client.rest()
        assert refusal.refusal.fatal
        assert f"was silent for {limit_s:.0f} s" in refusal.refusal.message
        assert client.error is not None
        assert client.error.code() == grpc.StatusCode.UNAVAILABLE


def test_a_stream_that_speaks_or_waits_for_an_answer_stays(aggregator: server.Aggregator) -> None:
    source = RankSource()
    with IngestClient(aggregator.address) as client:
        assert client.open(source) == -1
        (each,) = aggregator._collector._calls
        _silent_for(aggregator, aggregator.config.stream_idle_s - 20)
        aggregator._collector.end_idle()
        with each._lock:
            each._pending += 1
        _silent_for(aggregator, 1000.0)
        aggregator._collector.end_idle()
        batch = source.batch(10)
        client.send(batch=batch)
        assert client.acks(1) == [batch.sequence_last]
        with each._lock:
            each._pending -= 1


def test_a_client_that_does_not_take_its_end_is_cut_off(aggregator: server.Aggregator) -> None:
    with IngestClient(aggregator.address) as client:
        (each,) = aggregator._collector._calls
        each._ended = True  # and nothing is said of it: the word of it is stuck behind what it does not read
        _silent_for(aggregator, stream.UNREAD_END_S + 1)
        aggregator._collector.end_idle()
        assert client.rest() == []
        assert client.error is not None
        assert client.error.code() == grpc.StatusCode.CANCELLED


def test_health_watches_and_reflection_keep_nobody_out(aggregator: server.Aggregator) -> None:
    with grpc.insecure_channel(aggregator.address) as channel:
        ask = health_pb2_grpc.HealthStub(channel)
        watches = [ask.Watch(health_pb2.HealthCheckRequest()) for _ in range(peers.WATCHES_MAX // 2)]
        for watch in watches:
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(ask.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "too many health watches are open" in caught.value.details()
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
        silent = [reflect.ServerReflectionInfo(_asks_and_waits()) for _ in range(peers.REFLECTIONS_MAX // 2)]
        for call in silent:
            next(call)
        with pytest.raises(grpc.RpcError) as caught:
            next(reflect.ServerReflectionInfo(_asks_and_waits(), timeout=TIMEOUT_S))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ask.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        with connect(aggregator.address) as queries, IngestClient(aggregator.address):
            assert queries.sql("SELECT 1 AS one").num_rows == 1
        for call in (*watches, *silent):
            call.cancel()


def test_calls_that_never_say_what_they_ask_keep_nobody_out(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grpc.insecure_channel(aggregator.address) as channel:
        silent = [channel.stream_unary(STATUS).future(_nothing()) for _ in range(2 * peers.UNSENT_MAX)]
        ended: queue.SimpleQueue[grpc.Future] = queue.SimpleQueue()
        for call in silent:
            call.add_done_callback(ended.put)
        for _ in range(len(silent) - peers.UNSENT_MAX // 2):
            assert ended.get(timeout=TIMEOUT_S).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        monkeypatch.setattr(peers, "host_of", lambda peer: "10.0.0.7")  # who asks from elsewhere
        with connect(aggregator.address) as queries, IngestClient(aggregator.address):
            assert queries.sql("SELECT 1 AS one").num_rows == 1
        for call in silent:
            call.cancel()


def _asks_and_waits() -> Iterator[reflection_pb2.ServerReflectionRequest]:
    yield reflection_pb2.ServerReflectionRequest(list_services="")
    _is_over.wait(TIMEOUT_S)


def _nothing() -> Iterator[bytes]:
    _is_over.wait(TIMEOUT_S)
    yield b""


@pytest.mark.parametrize("method", [INGEST, STATUS, REFLECTION])
def test_a_call_whose_message_cannot_be_read_is_ended_once_and_gives_its_place_back(
    aggregator: server.Aggregator, method: str
) -> None:
    with grpc.insecure_channel(aggregator.address) as channel:
        for _ in range(100):  # a call that was ended twice stayed in one of ten
            with pytest.raises(grpc.RpcError) as ended:
                list(channel.stream_stream(method)(iter([b"no message"]), timeout=TIMEOUT_S))
            status: grpc.Call = ended.value
            assert status.code() == grpc.StatusCode.UNAVAILABLE
            assert "its 10 bytes are not the message that they should be" in status.details()
        aggregator.close()
    assert not aggregator._server._state.rpc_states
