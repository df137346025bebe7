"""Refused, lost, repeated and late batches in any order: what a spool may become, against a small model.

The stream and the writer are the aggregator's own, on a real database; only gRPC is left out. After every
burst the model and the aggregator agree on each batch, and in the end on what is stored.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.writer import Writer
from rankmem_aggregator.server.ingest_call import IngestCall
from rankmem_aggregator.store.store import Store, open_store
from rankmem_protos import collector_pb2 as pb
from rankmem_protos.arrow_wire import encode_rows
from rankmem_ship.pairing.columns import rows_of
from repetitions import examples

TIMEOUT_S = 30.0
SESSION = "0ORDERSOFALL"
_SPOOLS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Send:
    """A batch: events, or a gap row over them, or bytes that are no Arrow."""

    shift: int
    """Where it begins, from the position that comes next by the model: there, before it, or behind it."""
    length: int = 2
    what: str = "events"

    def placed(self, last: int) -> tuple[int, int]:
        """First and last position where ``last`` is stored."""
        first = max(0, last + 1 + self.shift)
        return first, first + self.length - 1


class Open:
    """The spool is opened, for the first time or again."""

    def __repr__(self) -> str:
        return "Open()"


Op = Send | Open
OPS: st.SearchStrategy[Op] = st.one_of(
    st.just(Open()),
    st.builds(
        Send,
        shift=st.sampled_from([0, 0, 0, 0, 1, 2, -1, -2, -4]),
        length=st.integers(1, 4),
        what=st.sampled_from(["events", "events", "events", "gap", "garbage"]),
    ),
)
BURSTS = st.lists(st.tuples(st.integers(0, 1), st.lists(OPS, min_size=1, max_size=6)), max_size=6)
"""Bursts of a stream's requests, one behind the other without a wait; two streams take turns."""


@dataclass
class Model:
    """What collector.proto's rules say."""

    last: int = -1
    is_open: list[bool] = field(default_factory=lambda: [False, False])
    seqs: list[int] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def send(self, stream: int, what: str, first: int, last: int) -> bool:
        """Whether it is acknowledged."""
        if not self.is_open[stream] or what == "garbage":
            self.is_open[stream] = False
            return False
        if last <= self.last:
            return True
        if first != self.last + 1:
            self.is_open[stream] = False
            return False
        self.last = last
        if what == "gap":
            self.gaps.append((first, last))
        else:
            self.seqs += range(first, last + 1)
        return True


class Line:
    """A shipper's stream without gRPC between."""

    def __init__(self, writer: Writer, decoders: ThreadPoolExecutor) -> None:
        self._requests: queue.SimpleQueue[pb.IngestRequest | None] = queue.SimpleQueue()
        stream = IngestCall(iter(self._requests.get, None), writer, decoders, "db", "test-stream")
        self._replies = stream.replies()
        self.send(hello=pb.Hello(protocol_version=1))
        assert next(self._replies).WhichOneof("body") == "welcome"

    def send(self, **body: object) -> None:
        self._requests.put(pb.IngestRequest(**body))  # type: ignore[arg-type]

    def replies(self, count: int) -> list[pb.IngestReply]:
        return list(itertools.islice(self._replies, count))

    def end(self) -> None:
        self._requests.put(None)
        assert list(self._replies) == []


@dataclass
class Desk:
    """One aggregator for all examples; each has a spool of its own."""

    store: Store
    writer: Writer
    decoders: ThreadPoolExecutor

    def run(self, bursts: Sequence[tuple[int, Sequence[Op]]]) -> None:
        rank = next(_SPOOLS)
        opening = pb.OpenSpool(spool_id=f"{SESSION}-0-{rank}", session_id=SESSION, rank=rank, secret=b"x")
        model, lines = Model(), [Line(self.writer, self.decoders) for _ in range(2)]
        for stream, ops in bursts:
            expected: dict[int, bool] = {}
            for number, op in enumerate(ops):
                if isinstance(op, Open):
                    model.is_open[stream] = True
                    lines[stream].send(open_spool=opening)
                else:
                    first, last = op.placed(model.last)
                    expected[number] = model.send(stream, op.what, first, last)
                    lines[stream].send(batch=batch_of(op.what, first, last, opening, number))
            replies = lines[stream].replies(len(ops))
            answers = {r.ack.batch_number: True for r in replies if r.HasField("ack")}
            answers |= {r.refusal.batch_number: False for r in replies if r.HasField("refusal")}
            assert answers == expected
            assert all(r.ack.last_sequence <= model.last for r in replies if r.HasField("ack"))
        for line in lines:
            line.end()
        self.check(rank, model)

    def check(self, rank: int, model: Model) -> None:
        """Every position up to the last is there once, or in a gap row: nothing else is."""
        with self.store.cursor() as cursor:
            seqs = cursor.execute(
                "SELECT seq FROM memory_event WHERE rank = $1 ORDER BY seq", [rank]
            ).fetchall()
            gaps = cursor.execute(
                "SELECT sequence_first, sequence_last FROM gap WHERE rank = $1 ORDER BY ALL", [rank]
            ).fetchall()
        assert [seq for (seq,) in seqs] == model.seqs
        assert gaps == model.gaps
        told = sorted([*model.seqs, *(at for first, last in gaps for at in range(first, last + 1))])
        assert told == list(range(model.last + 1))


def batch_of(what: str, first: int, last: int, opening: pb.OpenSpool, number: int) -> pb.Batch:
    who = {"session_id": SESSION, "attempt": 0, "rank": opening.rank}
    if what == "gap":
        span = {"sequence_first": first, "sequence_last": last, "records": last - first + 1}
        table, rows = "gap", rows_of("gap", [who | span | {"why": "other_database"}])
    else:
        event = who | {"device": "cpu", "time_ns": 1, "action": "alloc", "component": "pytorch"}
        numbers = {"address": 1, "size_bytes": 1, "requested_bytes": 1}
        events = [event | numbers | {"seq": seq} for seq in range(first, last + 1)]
        table, rows = "memory_event", rows_of("memory_event", events)
    data = b"garbage" if what == "garbage" else encode_rows(rows)
    return pb.Batch(
        spool_id=opening.spool_id,
        batch_number=number,
        sequence_first=first,
        sequence_last=last,
        tables=[pb.TableRows(table=table, arrow_ipc=data)],
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    config = AggregatorConfig(
        database_path=tmp_path_factory.mktemp("order") / "o.duckdb", group_wait_s=0.0, group_interval_s=0.0
    )
    store = open_store(config)
    writer = Writer(store, config, free_memory=lambda: None, died=lambda exc: None)
    writer.start()
    with ThreadPoolExecutor(2) as decoders:
        yield Desk(store, writer, decoders)
    writer.close(TIMEOUT_S)
    store.close()


@examples(0.4)
@given(BURSTS)
def test_refused_lost_repeated_and_late_batches_leave_no_hole_that_is_not_told(
    desk: Desk, bursts: list[tuple[int, list[Op]]]
) -> None:
    desk.run(bursts)


@pytest.mark.long
@examples(15)
@given(BURSTS)
def test_they_leave_none_in_many_more_orders(desk: Desk, bursts: list[tuple[int, list[Op]]]) -> None:
    desk.run(bursts)


def test_a_log_whose_first_batch_is_refused_stores_nothing_of_what_follows(desk: Desk) -> None:
    refused = Send(shift=0, what="garbage")
    desk.run([(0, [Open(), refused, Send(shift=2), Send(shift=4)])])


def test_behind_a_refused_batch_not_even_one_is_taken_that_would_follow(desk: Desk) -> None:
    for refused in (Send(shift=0, what="garbage"), Send(shift=3), Send(shift=-1, length=4)):
        desk.run([(0, [Open(), Send(shift=0), refused, Send(shift=0)]), (1, [Open(), Send(shift=0)])])


def test_a_log_that_begins_above_0_begins_with_a_gap_row_over_what_is_before(desk: Desk) -> None:
    desk.run([(0, [Open(), Send(shift=4)]), (0, [Open(), Send(shift=0, length=4, what="gap")])])
