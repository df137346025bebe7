"""A client of the Ingest port that means harm: answered shortly, refused by name, and nobody else notices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import grpc
import pytest

from ingest_client import IngestClient
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import Spool, decode_batch
from rankmem_aggregator.ingest.sequence import Opening
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server.ingest_call import IngestCall
from rankmem_aggregator.server.services import DECODERS
from rankmem_protos import collector_pb2 as pb
from rankmem_protos.errors import Code, RankmemError
from sample_batches import RankSource

LONG = "x" * 1_000_000
REPLY_BYTES_MAX = 10_000


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Aggregator]:
    config = AggregatorConfig.from_environment(
        {},
        database_path=tmp_path_factory.mktemp("hostile") / "h.duckdb",
        listen="127.0.0.1:0",
        group_wait_s=0.0,
        group_interval_s=0.0,
    )
    with server.open(config) as running:
        yield running


@pytest.mark.parametrize(
    "body",
    [
        {"open_spool": pb.OpenSpool(spool_id=LONG, session_id="s")},
        {"open_spool": pb.OpenSpool(spool_id="s", session_id=LONG)},
        {"batch": pb.Batch(spool_id=LONG)},
        {"batch": pb.Batch(spool_id="OPEN", tables=[pb.TableRows(table=LONG)])},
        {"batch": pb.Batch(spool_id="OPEN", tables=[pb.TableRows(table="step", arrow_ipc=b"x" * 2_000_000)])},
    ],
)
def test_what_came_long_is_answered_shortly(aggregator: server.Aggregator, body: dict[str, object]) -> None:
    source = RankSource()
    with IngestClient(aggregator.address) as client:
        client.open(source)
        batch = body.get("batch")
        if isinstance(batch, pb.Batch) and batch.spool_id == "OPEN":
            batch.spool_id = source.spool_id
        client.send(**body)
        reply = client.reply()
        assert reply.refusal.code == "invalid"
        assert reply.ByteSize() < REPLY_BYTES_MAX
        client.send(clock_probe=pb.ClockProbe(sent_ns=1))
        assert client.reply().WhichOneof("body") == "clock_reply", "the stream goes on"


def test_a_second_hello_ends_the_stream(aggregator: server.Aggregator) -> None:
    with IngestClient(aggregator.address) as client:
        client.send(hello=pb.Hello(protocol_version=1))
        (reply,) = client.rest()
        assert (reply.refusal.code, reply.refusal.fatal) == ("invalid", True)


def test_positions_beyond_every_log_are_refused_and_the_spool_stays_usable(
    aggregator: server.Aggregator,
) -> None:
    source = RankSource(rank=7)
    good = source.batch(50)
    ranges = [(0, 2**63), (2**63, 2**64 - 1), (2**64 - 1, 2**64 - 1), (5, 4)]
    with IngestClient(aggregator.address) as client:
        client.open(source)
        for first, last in ranges:
            client.send(batch=pb.Batch(spool_id=source.spool_id, sequence_first=first, sequence_last=last))
            assert client.reply().refusal.code == "invalid"
            client.send(batch=good)
            assert client.reply().refusal.code == "conflict", "nothing follows a refusal"
            assert client.open(source) == -1
        client.send(batch=good)
        assert client.acks(1) == [good.sequence_last]


def test_a_few_threads_decode_for_all_streams(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()

    def watched(*arguments: object) -> object:
        names.add(threading.current_thread().name)
        return decode_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("rankmem_aggregator.server.ingest_call.decode_batch", watched)
    sources = [RankSource(rank=20 + number) for number in range(3 * DECODERS)]
    with contextlib.ExitStack() as streams:
        clients = [streams.enter_context(IngestClient(aggregator.address)) for _ in sources]
        for client, source in zip(clients, sources, strict=True):
            client.open(source)
        for client, source in zip(clients, sources, strict=True):
            client.send(batch=source.batch(50))
            client.send(batch=source.batch(50))
        for client in clients:
            client.acks(2)
    assert 1 <= len(names) <= DECODERS
    assert all(name.startswith("rankmem-decode") for name in names)


def test_a_batch_that_breaks_what_decodes_it_is_refused_and_others_go_on(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer its shipper would wait for ever, told every few seconds that it has to."""
    odd, good = RankSource(rank=40), RankSource(rank=41)

    def breaking(message: pb.Batch, spool: Spool) -> object:
        if message.spool_id == odd.spool_id:
            raise TypeError("nobody thought of this")
        return decode_batch(message, spool)

    monkeypatch.setattr("rankmem_aggregator.server.ingest_call.decode_batch", breaking)
    with IngestClient(aggregator.address) as client:
        client.open(odd)
        client.open(good)
        client.send(batch=odd.batch(50))
        refusal = client.reply().refusal
        assert (refusal.code, refusal.fatal, refusal.spool_id) == ("internal", False, odd.spool_id)
        assert "nobody thought of this" in refusal.message
        client.send(batch=good.batch(50))
        assert client.acks(1) == [good.next_sequence - 1]
        assert client.end() == []
    assert client.error is None


def test_a_batch_for_which_no_thread_can_be_started_may_come_again(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RankSource(rank=42)

    def submit(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with IngestClient(aggregator.address) as client:
        client.open(source)
        monkeypatch.setattr(aggregator._collector._decoders, "submit", submit)
        client.send(batch=source.batch(50))
        (reply,) = client.rest()
        assert (reply.refusal.code, reply.refusal.fatal) == ("unavailable", True)
    assert isinstance(client.error, grpc.Call)
    assert client.error.code() is grpc.StatusCode.UNAVAILABLE


def test_a_request_that_breaks_what_reads_it_ends_the_stream_with_a_word(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(message: object) -> None:
        raise TypeError("nobody thought of this")

    monkeypatch.setattr("rankmem_aggregator.server.ingest_call.Spool.of", breaking)
    with IngestClient(aggregator.address) as client:
        client.send(open_spool=RankSource(rank=43).open_spool().open_spool)
        (reply,) = client.rest()
        assert (reply.refusal.code, reply.refusal.fatal) == ("internal", True)


def test_a_spool_that_is_not_taken_keeps_no_place(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each night's run under a deleted session's name would push the first that is taken an attempt on."""
    sources = [RankSource(session_id="0DELETED0000", rank=rank) for rank in range(3)]

    def deleted(spool: Spool) -> int:
        raise RankmemError(Code.NOT_FOUND, "its session was deleted here")

    with IngestClient(aggregator.address) as client:
        with monkeypatch.context() as patched:
            patched.setattr(aggregator._writer.progress, "stored", deleted)
            for source in sources:
                client.send(open_spool=source.open_spool().open_spool)
                assert client.reply().refusal.code == "not_found"
        for source in sources:
            source.spool_id += "9"
            client.send(open_spool=source.open_spool().open_spool)
            assert client.reply().spool_state.attempt == 0


class _Meanwhile(Opening):
    """Another spool is opened while this one is looked at: the stream's other thread goes on."""

    opened: dict[str, Opening]

    @property
    def spool(self) -> Spool:  # type: ignore[override]
        self.opened[f"s{len(self.opened)}"] = self
        return Spool(spool_id="s", session_id="s", attempt=0, rank=0)


def test_a_stream_is_stopped_while_it_opens_spools(aggregator: server.Aggregator) -> None:
    stopped = IngestCall(iter(()), aggregator._writer, aggregator._collector._decoders, "", "stream")
    opening = _Meanwhile.__new__(_Meanwhile)
    opening.opened = stopped._spools
    opening.opened |= {"a": opening, "b": opening}
    stopped.stop(RankmemError(Code.UNAVAILABLE, "the aggregator is closing"))
    assert stopped.error is not None
