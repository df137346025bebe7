"""Batches over real gRPC into a real DuckDB: once, in order, refused alone, readers never waiting."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from ingest_client import TIMEOUT_S, IngestClient
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_protos import collector_pb2 as pb
from sample_batches import RankSource


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[server.Aggregator]:
    config = AggregatorConfig(
        database_path=tmp_path / "mem.duckdb",
        listen="127.0.0.1:0",
        max_streams=3,
        group_wait_s=0.0,
        group_interval_s=0.0,
    )
    with server.open(config) as running:
        yield running


def ask(aggregator: server.Aggregator, sql: str) -> list[tuple[object, ...]]:
    with connect(aggregator.address) as queries:
        return [tuple(row.values()) for row in queries.sql(sql).to_pylist()]


EVENTS = "SELECT count(*), count(DISTINCT (rank, seq)) FROM memory_event"


def test_acknowledged_batches_are_visible_at_once(aggregator: server.Aggregator) -> None:
    source = RankSource()
    with IngestClient(aggregator.address) as client:
        assert client.welcome.protocol_version == 1
        assert client.open(source) == -1
        for _ in range(5):
            batch = source.batch(100)
            client.send(batch=batch)
            assert client.acks(1) == [batch.sequence_last]
            assert ask(aggregator, "SELECT last_sequence FROM ingest_progress") == [(batch.sequence_last,)]
        ((stored, distinct),) = ask(aggregator, EVENTS)
        assert stored == distinct
        assert isinstance(stored, int)
        assert stored >= 500
        assert client.end() == []
        assert client.error is None


def test_stack_ids_are_the_databases_own_and_lead_to_the_frames(aggregator: server.Aggregator) -> None:
    with IngestClient(aggregator.address) as client:
        for rank in range(2):
            source = RankSource(rank=rank)
            client.open(source)
            client.send(batch=source.batch(1000))
            client.acks(1)
    ((largest, stacks),) = ask(
        aggregator, "SELECT max(stack_id), count(DISTINCT stack_id) FROM operator_call"
    )
    assert largest == stacks
    assert ask(aggregator, "SELECT count(*), count(DISTINCT (stack_id, ordering)) FROM stack_frame") == [
        (12 * stacks, 12 * stacks)  # type: ignore[operator]
    ]
    assert ask(aggregator, "SELECT count(*) FROM operator_call ANTI JOIN stack_frame USING (stack_id)") == [
        (0,)
    ]


def test_a_shipper_that_lost_its_acknowledgements_sends_again_and_nothing_is_stored_twice(
    aggregator: server.Aggregator,
) -> None:
    source = RankSource()
    batches = [source.batch(100) for _ in range(3)]
    with IngestClient(aggregator.address) as client:
        client.open(source)
        for batch in batches[:2]:
            client.send(batch=batch)
        client.acks(2)
    with IngestClient(aggregator.address) as client:
        assert client.open(source) == batches[1].sequence_last
        for batch in batches:
            client.send(batch=batch)
        assert client.acks(3) == [batch.sequence_last for batch in batches]
    ((stored, distinct),) = ask(aggregator, EVENTS)
    assert stored == distinct


def test_two_streams_of_one_spool_store_each_batch_once(aggregator: server.Aggregator) -> None:
    source = RankSource()
    batches = [source.batch(50) for _ in range(20)]
    with IngestClient(aggregator.address) as one, IngestClient(aggregator.address) as other:
        for client in (one, other):
            client.open(source)
        senders = [
            threading.Thread(target=lambda c=client: [c.send(batch=batch) for batch in batches])
            for client in (one, other)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(TIMEOUT_S)
        # Whoever is first with a batch stores it; for the other it is known. Neither is refused.
        for client in (one, other):
            assert client.acks(20) == [batch.sequence_last for batch in batches]
    ((stored, distinct),) = ask(aggregator, EVENTS)
    assert stored == distinct
    assert aggregator.counters.batches == 20


def test_a_bad_batch_is_refused_alone_and_the_stream_goes_on(aggregator: server.Aggregator) -> None:
    good, bad = RankSource(rank=0), RankSource(rank=1)
    with IngestClient(aggregator.address) as client:
        client.open(good)
        client.open(bad)
        wrong = bad.batch(50)
        wrong.tables[0].arrow_ipc = b"garbage"
        client.send(batch=good.batch(50))
        client.send(batch=wrong)
        client.send(batch=good.batch(50))
        replies = [client.reply() for _ in range(3)]
        refusals = [reply.refusal for reply in replies if reply.WhichOneof("body") == "refusal"]
        assert [(r.spool_id, r.batch_number, r.code, r.fatal) for r in refusals] == [
            (bad.spool_id, 1, "invalid", False)
        ]
        # What follows the refused batch does not follow what is stored; another rank's does.
        later = bad.batch(50)
        assert later.sequence_first > 0
        client.send(batch=good.batch(50))
        client.acks(1)
    assert ask(aggregator, "SELECT DISTINCT rank FROM memory_event") == [(0,)]


def test_a_hole_is_refused_with_where_to_go_on(aggregator: server.Aggregator) -> None:
    source = RankSource()
    first = source.batch(50)
    source.batch(50)
    third = source.batch(50)
    with IngestClient(aggregator.address) as client:
        client.open(source)
        client.send(batch=first)
        client.send(batch=third)
        client.acks(1)
        refusal = client.reply().refusal
        assert refusal.code == "conflict"
        assert str(first.sequence_last + 1) in refusal.hint


@pytest.mark.parametrize(
    ("request_body", "code"),
    [
        ({"hello": pb.Hello(protocol_version=2)}, "unsupported"),
        ({"clock_probe": pb.ClockProbe(sent_ns=1)}, "invalid"),
        ({}, "invalid"),
    ],
)
def test_a_stream_that_does_not_begin_with_a_known_hello_is_ended(
    aggregator: server.Aggregator, request_body: dict[str, object], code: str
) -> None:
    with IngestClient(aggregator.address, greet=False) as client:
        client.send(**request_body)
        (reply,) = client.rest()
        assert (reply.refusal.code, reply.refusal.fatal) == (code, True)
        assert client.error is not None


def test_a_spool_that_is_not_open_or_is_anothers_is_refused(aggregator: server.Aggregator) -> None:
    source = RankSource()
    with IngestClient(aggregator.address) as client:
        batch = source.batch(50)
        client.send(batch=batch)
        assert "not open" in client.reply().refusal.message
        client.open(source)
        client.send(batch=batch)
        client.acks(1)
        client.send(open_spool=pb.OpenSpool(spool_id=source.spool_id, session_id="another", rank=9))
        assert client.reply().refusal.code == "invalid"
        client.send(open_spool=pb.OpenSpool(spool_id="", session_id="x"))
        assert client.reply().refusal.code == "invalid"


def test_a_clock_probe_comes_back_with_stamps_in_order(aggregator: server.Aggregator) -> None:
    with IngestClient(aggregator.address) as client:
        sent_ns = time.time_ns()
        client.send(clock_probe=pb.ClockProbe(sent_ns=sent_ns))
        reply = client.reply().clock_reply
        assert sent_ns == reply.sent_ns <= reply.received_ns <= reply.replied_ns <= time.time_ns()


def test_a_stream_too_many_is_refused_and_room_comes_back(aggregator: server.Aggregator) -> None:
    address = aggregator.address
    with IngestClient(address), IngestClient(address) as second, IngestClient(address):
        with IngestClient(address, greet=False) as fourth:
            fourth.send(hello=pb.Hello(protocol_version=1))
            assert fourth.rest() == []
            assert fourth.error is not None
            assert fourth.error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        second.end()
        with IngestClient(address) as again:
            assert again.welcome.database_id


def test_garbage_on_the_port_disturbs_nobody(aggregator: server.Aggregator) -> None:
    host, _, port = aggregator.address.rpartition(":")
    source = RankSource()
    with IngestClient(aggregator.address) as client:
        client.open(source)
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(range(256)) * 64,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff",
        ):
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as raw:
                raw.sendall(data)
        client.send(batch=source.batch(50))
        client.acks(1)
    assert ask(aggregator, EVENTS) == [(50, 50)]


def test_a_query_is_answered_while_a_commit_is_under_way_and_sees_the_state_before_it(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RankSource()
    inside, go_on = threading.Event(), threading.Event()
    connection = aggregator.store.instance.connection
    write = aggregator.store.write

    def slow(rows: Mapping[str, pa.Table]) -> None:
        connection.execute("BEGIN TRANSACTION")
        columns = "session_id, attempt, rank, sequence_first, sequence_last, records, why"
        connection.execute(f"INSERT INTO gap ({columns}) VALUES ('s', 0, 0, 0, 0, 1, 'torn')")
        inside.set()
        go_on.wait(TIMEOUT_S)
        connection.execute("ROLLBACK")
        write(rows)

    monkeypatch.setattr(aggregator.store, "write", slow)
    with IngestClient(aggregator.address) as client:
        client.open(source)
        client.send(batch=source.batch(50))
        assert inside.wait(TIMEOUT_S)
        assert ask(aggregator, "SELECT count(*) FROM gap UNION ALL SELECT count(*) FROM memory_event") == [
            (0,),
            (0,),
        ]
        go_on.set()
        client.acks(1)


def test_a_reader_in_the_middle_of_its_result_does_not_hold_up_ingest(aggregator: server.Aggregator) -> None:
    source = RankSource()
    with IngestClient(aggregator.address) as client, connect(aggregator.address) as queries:
        client.open(source)
        client.send(batch=source.batch(2000))
        client.acks(1)
        ((before, _),) = ask(aggregator, EVENTS)
        result = queries.stream(
            "SELECT m.seq FROM memory_event m, range(1000) ORDER BY ALL"  # far more than one window of gRPC
        )
        batches = iter(result)
        num_rows = next(batches).num_rows
        for _ in range(3):
            client.send(batch=source.batch(50))
        client.acks(3)
        ((stored, _),) = ask(aggregator, EVENTS)
        assert stored >= before + 150
        num_rows += sum(batch.num_rows for batch in batches)
        assert num_rows == before * 1000, "it reads the state that it began with"
