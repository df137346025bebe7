"""A path that dies within some bytes: batches shrink until one gets through, and grow again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_ship.envelope import Envelope
from rankmem_ship.pace import BATCH_RECORDS, LANE_BATCHES_MAX, NARROWEST, WIDER_AFTER, Pace
from rankmem_ship.spool_upload import Lane, Riders
from spool_synthetic import SyntheticSpool, training_records

STEPS = 6_000


@pytest.fixture
def spool(tmp_path: Path) -> SyntheticSpool:
    spool = SyntheticSpool(path=tmp_path / "spool")
    spool.append(training_records(spool, STEPS))
    spool.end()
    return spool


@pytest.fixture
def lane(spool: SyntheticSpool) -> Iterator[Lane]:
    lane = Lane(spool.path)
    lane.opened(-1)
    yield lane
    lane.close()


def _sent(lane: Lane) -> list[Envelope]:
    """All that goes out now."""
    sent = []
    while (envelope := lane.next_batch(Riders())) is not None:
        sent.append(envelope)
    return sent


def test_a_connection_that_brings_nothing_makes_batches_smaller_and_fewer(lane: Lane) -> None:
    lengths, counts, again = [], [], list[Envelope]()
    for _ in range(NARROWEST + 2):
        sent = [*again, *_sent(lane)]
        lengths.append(sent[0].message.sequence_last + 1)
        counts.append(len(sent))
        lane.broke()
        again = lane.opened(-1)
    assert lengths == [BATCH_RECORDS >> 2 * min(times, NARROWEST) for times in range(NARROWEST + 2)]
    assert counts[-2:] == [1, 1], "one small batch, and never less"


def test_batches_that_were_stored_though_nobody_heard_of_it_are_no_failure(lane: Lane) -> None:
    first = _sent(lane)[0]
    lane.broke()
    again = lane.opened(first.message.sequence_last)
    assert again
    assert again[0].message.sequence_first == first.message.sequence_last + 1


def test_a_connection_that_brought_something_leaves_batches_as_they_are(lane: Lane) -> None:
    sent = _sent(lane)
    lane.acknowledged(sent[0].message.sequence_last)
    lane.broke()
    assert lane.opened(sent[0].message.sequence_last) == sent[1:]


def test_a_refusal_that_opening_again_may_cure_leaves_batches_as_they_are(lane: Lane) -> None:
    sent = _sent(lane)
    lane.acknowledged(sent[0].message.sequence_last)
    lane.disconnected()
    lane.opened(sent[0].message.sequence_last)
    lane.disconnected()
    assert lane.opened(sent[0].message.sequence_last) == sent[1:]


@pytest.mark.parametrize("bytes_max", [600_000, 45_000])
def test_over_a_path_that_dies_within_some_bytes_everything_arrives_in_order(
    spool: SyntheticSpool, lane: Lane, bytes_max: int
) -> None:
    """The other end has what fits; every connection begins where that stopped."""
    stored, connections, again = -1, 0, list[Envelope]()
    while stored < spool.next_seq:
        connections += 1
        assert connections < 2_000
        passed = 0
        for envelope in (*again, *_sent(lane)):
            passed += envelope.size_bytes
            if passed > bytes_max:
                break
            assert envelope.message.sequence_first == stored + 1
            stored = envelope.message.sequence_last
        lane.broke()
        again = lane.opened(stored)
    assert connections > 3


def test_success_over_one_connection_makes_them_larger_again() -> None:
    pace = Pace()
    while pace.broke():
        pass
    assert (pace.batch_records, pace.batches_max) == (128, 1)
    pace.stored(WIDER_AFTER - 1)
    pace.opened()
    pace.stored(WIDER_AFTER - 1)
    assert pace.batch_records == 128, "a connection that dies so soon is not to be trusted with more"
    for _ in range(NARROWEST + 1):
        pace.stored(WIDER_AFTER)
    assert (pace.batch_records, pace.batches_max) == (BATCH_RECORDS, LANE_BATCHES_MAX)
