"""A shipper whose answers are lost, repeated, late or refusals: what is stored is the whole log, once.

The aggregator is a model in this process, by the rules of protos/rankmem_protos/README.md; the shipper, its
uploads and the spool are real. What the model may not do is lose what it acknowledged.
"""

from __future__ import annotations

import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_agent.spool.layout import Kind
from rankmem_protos.arrow_wire import decode_rows
from rankmem_protos.collector_pb2 import Ack, IngestReply, IngestRequest, Refusal, SpoolState
from rankmem_protos.errors import RankmemError
from rankmem_ship import pace as pace_module
from rankmem_ship import shipper as shipper_module
from rankmem_ship.config import ShipConfig
from rankmem_ship.shipper import Shipper
from repetitions import examples
from spool_synthetic import SyntheticSpool, training_records

STEPS_MAX = 3_000
FATES = st.lists(
    st.sampled_from(["good"] * 6 + ["conflict", "break", "late", "twice", "exhausted", "deaf"]), max_size=60
)
"""What becomes of the batches and openings that come, one after the other; then all is good."""


@dataclass
class Model:
    """An aggregator, and in the place of the shipper's ``Sender``."""

    fates: deque[str]
    last: int = -1
    seqs: list[int] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    is_open: bool = False
    replies: list[IngestReply] = field(default_factory=list)
    late: list[IngestReply] = field(default_factory=list)
    generation: int = 1
    connected: bool = True
    takes_details: bool = False
    aggregator: str = "model"
    database_id: str = "db"
    num_failures: int = 0
    error: RankmemError | None = None

    def send(self, request: IngestRequest) -> None:
        body = request.WhichOneof("body")
        if body == "open_spool":
            self.is_open = True
            state = SpoolState(spool_id=request.open_spool.spool_id, last_sequence=self.last)
            self._answer(IngestReply(spool_state=state), self._fate())
        elif body == "batch":
            self._take(request)

    def poll(self) -> list[IngestReply]:
        """What is late comes behind what is not, a round later."""
        said, self.replies, self.late = self.replies, self.late, []
        return said

    def drop(self, error: RankmemError) -> None:
        self.generation += 1
        self.is_open = False
        self.replies, self.late = [], []

    def expect_no_reply(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _fate(self) -> str:
        return self.fates.popleft() if self.fates else "good"

    def _take(self, request: IngestRequest) -> None:
        batch, fate = request.batch, self._fate()
        refused = "conflict" if not self.is_open else fate if fate in ("conflict", "exhausted") else ""
        if not refused and batch.sequence_last > self.last and batch.sequence_first != self.last + 1:
            refused = "conflict"
        if refused:
            self.is_open = False
            refusal = Refusal(spool_id=batch.spool_id, batch_number=batch.batch_number, code=refused)
            self._answer(IngestReply(refusal=refusal), fate)
            return
        if batch.sequence_last > self.last:
            self.last = batch.sequence_last
            self.ranges.append((batch.sequence_first, batch.sequence_last))
            for entry in batch.tables:
                if entry.table == "memory_event":
                    self.seqs += decode_rows(entry.table, entry.arrow_ipc).column("seq").to_pylist()
        ack = Ack(spool_id=batch.spool_id, batch_number=batch.batch_number, last_sequence=self.last)
        self._answer(IngestReply(ack=ack), fate)

    def _answer(self, reply: IngestReply, fate: str) -> None:
        if fate == "break":  # before the answer arrives
            self.drop(RankmemError("unavailable", "broken"))  # type: ignore[arg-type]
        elif fate == "deaf":
            self.late, self.replies = [], []
            self.drop(RankmemError("unavailable", "deaf"))  # type: ignore[arg-type]
        elif fate == "late":
            self.late.append(reply)
        else:
            self.replies += [reply] * (2 if fate == "twice" else 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "BATCH_RECORDS", 200)
    monkeypatch.setattr(shipper_module, "REOPEN_S", 0.0)


def run(fates: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spool = SyntheticSpool(path=Path(folder) / "0-0-1", aggregator="127.0.0.1:9")
        records = training_records(spool, 250, live_calls=20)
        spool.append(records)
        spool.end()
        shipper = Shipper(Path(folder), ShipConfig(grace_s=0.0))
        model: Any = Model(deque(fates))
        shipper.sender = model
        shipper.scan()
        for _ in range(STEPS_MAX):
            shipper.step()
            if shipper.is_done:
                break
        assert shipper.is_done, (model.last, spool.next_seq, shipper.error)
        assert shipper.failures == []
        shipper.close("done")
        assert not spool.path.exists()
        assert model.last == spool.next_seq
        events = [place for place, record in enumerate(records) if record["kind"] == Kind.EVENT]
        assert model.seqs == events


@examples(0.25)
@given(FATES)
def test_whatever_becomes_of_the_answers_the_whole_log_is_stored_once(fates: list[str]) -> None:
    run(fates)


@pytest.mark.long
@examples(2)
@given(FATES)
def test_it_is_whatever_becomes_of_them_in_many_more_ways(fates: list[str]) -> None:
    run(fates)
