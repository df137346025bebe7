"""Behind a slow aggregator a lane's batches become larger, not more: a short one waits for room."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmem_agent.ship.lane import SHORT_BATCHES_MAX, Lane, Riders
from spool_synthetic import SyntheticSpool, training_records


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticSpool:
    # It is always time for a beat.
    monkeypatch.setattr("rankmem_agent.ship.stretches._beat_after", lambda time_s, beats: time_s)
    return SyntheticSpool(path=tmp_path / "spool", alive=True)


def test_a_short_batch_waits_while_two_are_not_acknowledged(spool: SyntheticSpool) -> None:
    records = training_records(spool, 100)
    parts = [records[begin : begin + 50] for begin in range(0, 300, 50)]
    lane = Lane(spool.path)
    lane.opened(-1)
    sent = []
    for part in parts[:SHORT_BATCHES_MAX]:
        spool.append(part)
        sent.append(lane.next_batch(Riders()))
    assert all(sent)
    for part in parts[SHORT_BATCHES_MAX:]:
        spool.append(part)
        assert lane.next_batch(Riders()) is None
    first = sent[0]
    assert first is not None
    lane.acknowledged(first.message.sequence_last)
    later = lane.next_batch(Riders())
    assert later is not None
    assert later.message.sequence_last == spool.next_seq - 1, "all that came meanwhile is one batch"
    lane.close()


def test_the_last_batch_waits_for_nothing(spool: SyntheticSpool) -> None:
    records = training_records(spool, 100)
    lane = Lane(spool.path)
    lane.opened(-1)
    for begin in range(0, 50 * SHORT_BATCHES_MAX, 50):
        spool.append(records[begin : begin + 50])
        assert lane.next_batch(Riders()) is not None
    spool.append(records[200:250])
    spool.end()
    last = lane.next_batch(Riders())
    assert last is not None
    assert last.message.final
    lane.close()
