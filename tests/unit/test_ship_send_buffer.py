"""The table of states in ``send_buffer.SpoolQueue``, row by row; then the limits that all queues share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Final

import pytest

from rankmem_protos.collector_pb2 import Batch
from rankmem_ship import pace, send_buffer
from rankmem_ship.encoding import EncodedBatch
from rankmem_ship.flush_timer import FLUSH_INTERVAL_S
from rankmem_ship.pairing.state import PairingState
from rankmem_ship.send_buffer import SHORT_BATCHES_MAX, SendBuffer, SpoolQueue

RECORDS: Final = 10  # of each batch

Row = tuple[str, str]
Case = tuple[str, str, str]
"""Events before, the event, and the state after: mode, and a letter a batch (At the aggregator, In flight,
Released, Held)."""

TABLE: Final[dict[Row, list[Case]]] = {
    ("(none)", "added full, while collecting"): [
        ("end", "full", "collecting H"),
        ("end full full", "full", "collecting RHH"),
        ("end full full full next", "full", "collecting IRHH"),
    ],
    ("(none)", "added full, while flushing"): [
        ("", "full", "flushing R"),
        ("end full flush", "full", "flushing RR"),
    ],
    ("(none)", "added short or last"): [
        ("", "short", "collecting R"),
        ("end", "short", "collecting R"),
        ("end full full", "short", "collecting RRR"),
    ],
    ("HELD", "flush"): [("end full full", "flush", "flushing RR")],
    ("RELEASED", "next, with room"): [
        ("full full", "next", "flushing IR"),
        ("end full full full", "next", "collecting IHH"),
    ],
    ("RELEASED", "next, without room"): [("full crowd", "next", "flushing R")],
    ("IN FLIGHT", "received"): [
        ("full full next next", "receive 1", "flushing AI"),
        ("full full full next next next", "receive 3", "flushing AAA"),
        ("full full next", "receive 2", "flushing AR"),
        (" ".join(["full next"] * 6), "receive 6", "flushing AAA"),
    ],
    ("IN FLIGHT", "acknowledged"): [
        ("full full next next", "ack 1", "flushing I"),
        ("full full next next", "ack 2", "flushing "),
        ("full full next", "ack 2", "flushing R"),
    ],
    ("RECEIVED", "acknowledged"): [
        ("full full next next receive 1", "ack 1", "flushing I"),
        ("full full full next next receive 2", "ack 1", "flushing AR"),
        ("full full next next receive 1", "ack 2", "flushing "),
        (" ".join(["full next"] * 6) + " receive 6", "ack 5", "flushing A"),
    ],
    ("RECEIVED", "reopened before its end"): [
        ("full full next next receive 1 break", "reopen 0", "flushing AI restart"),
        ("full full full next next receive 2 break", "reopen 1", "flushing AAR restart"),
    ],
    ("IN FLIGHT", "connection broke"): [("full full next", "break", "flushing IR")],
    ("any", "reopened behind it"): [
        ("full full next next", "reopen 1", "flushing I again 1"),
        ("full next end full full", "reopen 2", "flushing R again 0"),
        ("full next", "reopen 1", "flushing  again 0"),
        ("full next break", "reopen 1", "flushing  again 0"),
        ("full full next next receive 1 break", "reopen 1", "flushing I again 1"),
        ("full full next next receive 2 break", "reopen 2", "flushing  again 0"),
    ],
    ("IN FLIGHT", "reopened at its start or an earlier's"): [
        ("full full next next", "reopen 0", "flushing II again 2"),
        ("full full full next next next ack 1 break", "reopen 1", "flushing II again 2"),
    ],
    ("HELD", "reopened at its start or an earlier's"): [
        ("end full full", "reopen 0", "flushing RR again 0"),
        ("full next end full", "reopen 0", "flushing IR again 1"),
    ],
    ("any", "reopened elsewhere"): [
        ("full full next next ack 1", "reopen 0", "flushing I restart"),
        ("full next end full", "reopen 0.5", "collecting IH restart"),
        ("full next", "reopen 3", "flushing I restart"),
    ],
    ("any", "reopened, nothing stored since opened"): [
        ("full next break", "reopen 0", "flushing I restart smaller"),
        ("full next end full break", "reopen 0", "collecting IH restart smaller"),
    ],
    ("any", "restarted"): [("full next end full", "restart", "flushing ")],
    ("COLLECTING", "flush, reopened or restarted"): [
        ("end", "flush", "flushing "),
        ("end", "reopen 0", "flushing  again 0"),
        ("end", "restart", "flushing "),
    ],
    ("FLUSHING", "added short or last"): [("full", "short", "collecting RR")],
    ("FLUSHING", "nothing is left to encode"): [
        ("", "end", "collecting "),
        ("full full full next next next", "end", "collecting III"),
    ],
    ("FLUSHING", "too many short ones in flight"): [
        (" ".join(["short next flush"] * SHORT_BATCHES_MAX), "end", "flushing " + "I" * SHORT_BATCHES_MAX)
    ],
}


class Driven:
    """A queue that is driven by words."""

    def __init__(self) -> None:
        self.buffer = SendBuffer()
        self.queue = self.buffer.open_queue()
        self.num_added = 0
        self.asked: list[tuple[int, bool]] = []
        self.queue.restart(0, PairingState())
        self.result = ""

    def run(self, events: str) -> None:
        words = iter(events.split())
        for word in words:
            self.result = ""
            if word in ("full", "short"):
                self.queue.add([self.batch(full=word == "full")])
            elif word == "crowd":
                other = self.buffer.open_queue()
                other.restart(0, PairingState())
                other.add([self.batch(full=True, size_bytes=send_buffer.IN_FLIGHT_BYTES_MAX)])
                assert other.next(self.encode)
            elif word == "ack":
                self.queue.acknowledged(border(next(words)))
            elif word == "receive":
                self.queue.received(border(next(words)))
            elif word == "break":
                self.queue.connection_broke()
            elif word == "reopen":
                self.reopen(border(next(words)))
            elif word == "restart":
                self.queue.restart(0, PairingState())
            elif word == "flush":
                self.queue.flush()
            else:  # "end": there is nothing more to encode
                assert word in ("next", "end")
                self.queue.next(self.encode)

    def reopen(self, last_sequence: int) -> None:
        before = self.queue._pace.batch_records
        again = self.queue.reopened(last_sequence)
        self.result = " restart" if again is None else f" again {len(again)}"
        if self.queue._pace.batch_records < before:
            self.result += " smaller"

    def encode(self, max_records: int, allow_short: bool) -> Sequence[EncodedBatch]:
        self.asked.append((max_records, allow_short))
        return ()

    def batch(self, *, full: bool, size_bytes: int = 1000) -> EncodedBatch:
        first = self.num_added * RECORDS
        self.num_added += 1
        message = Batch(sequence_first=first, sequence_last=first + RECORDS - 1)
        state = PairingState(next_seq=first + RECORDS)
        return EncodedBatch(message=message, size_bytes=size_bytes, state_after=state, full=full)

    @property
    def state(self) -> str:
        queue = self.queue
        released = queue._num_released
        held = len(queue._waiting) - released
        mode = "flushing" if queue._is_flushing else "collecting"
        received = "A" * len(queue._received)
        return f"{mode} {received}{'I' * queue.num_in_flight}{'R' * released}{'H' * held}{self.result}"


def border(batches: str) -> int:
    """The last position of so many batches."""
    return int(float(batches) * RECORDS) - 1


@pytest.mark.parametrize(
    ("given", "event", "then"),
    [
        pytest.param(*case, id=f"{row[0]}, {row[1]}: {case[0]}")
        for row, cases in TABLE.items()
        for case in cases
    ],
)
def test_each_transition_is_as_the_table_says(given: str, event: str, then: str) -> None:
    driven = Driven()
    driven.run(given)
    driven.run(event)
    assert driven.state == then


def test_the_docstring_has_these_rows_and_no_others() -> None:
    rule = re.compile(r"^ *=+ (=+) =+$", re.MULTILINE)
    text = inspect.getdoc(SpoolQueue) or ""
    rules = list(rule.finditer(text))
    tables = text[rules[0].start() : rules[-1].end()]
    width = len(rules[0][1])
    rows = re.findall(rf"^(.{{11}}) (.{{{width}}}) \S", tables, re.MULTILINE)
    written = [(batch.strip(), event.strip()) for batch, event in rows]
    assert [row for row in written if row[1] not in ("event", "", "=" * width)] == list(TABLE)


def test_what_is_acknowledged_gives_the_state_for_the_checkpoint() -> None:
    driven = Driven()
    driven.run("full full next next ack 1")
    assert driven.queue.acked_state is not None
    assert driven.queue.acked_state.next_seq == RECORDS


def test_of_what_is_received_the_last_state_is_kept_and_few_others() -> None:
    driven = Driven()
    driven.run(" ".join(["full next"] * 9) + " receive 9")
    assert len(driven.queue._received) <= send_buffer.RECEIVED_STATES_MAX
    assert not driven.queue.is_empty
    driven.run("ack 8")
    assert driven.queue.acked_state is not None
    assert driven.queue.acked_state.next_seq <= 8 * RECORDS
    driven.run("ack 9")
    assert driven.queue.acked_state.next_seq == 9 * RECORDS
    assert driven.queue.is_empty


def test_a_short_batch_is_asked_for_at_a_flush_alone() -> None:
    driven = Driven()
    driven.run("next next flush next")
    assert driven.asked == [
        (pace.BATCH_RECORDS, True),
        (pace.BATCH_RECORDS, False),
        (pace.BATCH_RECORDS, True),
    ]


def test_a_spool_has_its_own_limit_in_flight() -> None:
    driven = Driven()
    driven.run("full next " * pace.SPOOL_BATCHES_MAX + "full next")
    assert driven.state == "flushing " + "I" * pace.SPOOL_BATCHES_MAX + "R"
    driven.run("ack 1 next")
    assert driven.state == "flushing " + "I" * pace.SPOOL_BATCHES_MAX


def test_all_spools_share_one_limit_and_a_closed_queue_no_longer_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(send_buffer, "IN_FLIGHT_BATCHES_MAX", 2)
    driven = Driven()
    first, driven.queue = driven.queue, driven.buffer.open_queue()
    for queue in (first, first, driven.queue):
        queue.add([driven.batch(full=True)])
    assert first.next(driven.encode)
    assert first.next(driven.encode)
    assert driven.queue.next(driven.encode) is None
    first.close()
    assert driven.queue.next(driven.encode)


def test_a_flush_is_one_for_all_spools() -> None:
    driven = Driven()
    queues = [driven.queue, driven.buffer.open_queue()]
    for queue in queues:
        queue.next(driven.encode)
        queue.add([driven.batch(full=True)])
        assert queue.next(driven.encode) is None
    driven.buffer.flush_if_due(50.0, 2 * RECORDS)
    assert [queue.next(driven.encode) for queue in queues] == [None, None]
    driven.buffer.flush_if_due(50.0 + FLUSH_INTERVAL_S, 2 * RECORDS)
    assert all(queue.next(driven.encode) for queue in queues)
