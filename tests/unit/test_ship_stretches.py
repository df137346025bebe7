"""A log is cut where it is long enough, at a beat that all lanes share, or at its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankmem_agent.ship import stretches as stretches_module
from rankmem_agent.ship.stretches import BATCH_RECORDS, BEAT_S, BEAT_SLACK_S, QUICK_RECORDS_PER_S, Stretches
from rankmem_agent.spool.reader import SpoolReader
from spool_synthetic import CALL_RECORDS, SyntheticSpool, training_records


class Clock:
    """Stands in for the module ``time`` of the stretches."""

    def __init__(self) -> None:
        self.now_s = 1000 * BEAT_S

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stretches_module, "time", clock)
    return clock


def _growing(folder: Path, rank: int) -> tuple[SyntheticSpool, Stretches]:
    spool = SyntheticSpool(path=folder / f"0-{rank}-1", rank=rank, alive=True)
    spool.append(training_records(spool, 20, seed=rank))
    return spool, Stretches(SpoolReader(spool.path))


def test_lanes_whose_records_came_at_different_times_share_a_beat(tmp_path: Path, clock: Clock) -> None:
    lanes = [_growing(tmp_path, rank)[1] for rank in range(3)]
    for lane in lanes:
        assert lane.next() is None
        clock.now_s += 0.1 * BEAT_S
    clock.now_s = 1001 * BEAT_S - 1e-6
    assert [lane.next() for lane in lanes] == [None] * 3
    clock.now_s = 1001 * BEAT_S
    assert all(lane.next() is not None for lane in lanes)


def test_a_lane_of_many_records_is_cut_at_half_beats_too_and_one_of_few_is_not(
    tmp_path: Path, clock: Clock
) -> None:
    (quick, lane), (slow, other) = _growing(tmp_path, 0), _growing(tmp_path, 1)
    quick.append(training_records(quick, int(QUICK_RECORDS_PER_S * BEAT_S / CALL_RECORDS), seed=2))
    slow.append(training_records(slow, int(QUICK_RECORDS_PER_S * BEAT_S / CALL_RECORDS) // 4, seed=2))
    assert [lane.next(), other.next()] == [None, None]
    clock.now_s = 1000.49 * BEAT_S
    assert [lane.next(), other.next()] == [None, None]
    clock.now_s = 1000.5 * BEAT_S
    assert lane.next() is not None
    assert other.next() is None
    clock.now_s = 1001 * BEAT_S
    assert other.next() is not None


def test_what_came_just_before_a_beat_waits_for_the_one_after_and_no_longer(
    tmp_path: Path, clock: Clock
) -> None:
    _, lane = _growing(tmp_path, 0)
    clock.now_s = 1001 * BEAT_S - BEAT_SLACK_S / 2
    assert lane.next() is None
    clock.now_s = 1001.9 * BEAT_S
    assert lane.next() is None
    clock.now_s = 1002 * BEAT_S
    assert lane.next() is not None


def test_stretches_follow_one_another_and_a_full_one_waits_for_nothing(tmp_path: Path, clock: Clock) -> None:
    spool, lane = _growing(tmp_path, 0)
    repeated = np.tile(training_records(spool, 2000, seed=1), 3)
    spool.append(repeated)
    full = lane.next()
    assert full is not None
    assert (full.sequence_first, full.sequence_last, full.final) == (0, BATCH_RECORDS - 1, False)
    assert lane.next() is None
    spool.end()
    last = lane.next()
    assert last is not None
    assert (last.sequence_first, last.sequence_last, last.final) == (BATCH_RECORDS, spool.next_seq, True)
