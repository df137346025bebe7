"""Lanes are cut together, within a second of what they hold: sooner, the more of it there is."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rankmem_ship.flush_timer import BEAT_LEAST_S, BEAT_S, RECORD_S, Beats


def _beats_in(seconds: float, records_per_s: float, step_s: float = 0.01) -> list[float]:
    """When beats come while records are written at this rate, and go out at each beat."""
    beats, came, sent = Beats(), [], 0
    for number in range(round(seconds / step_s)):
        written = int(records_per_s * number * step_s)
        if beats.came(1000 + number * step_s, written - sent):
            came.append(1000 + number * step_s)
            sent = written
    return came


def test_a_beat_comes_a_while_after_the_first_record_and_not_before() -> None:
    beats = Beats()
    assert not beats.came(50.0, 0)
    assert not beats.came(70.0, 5)
    assert not beats.came(70.0 + BEAT_S - 0.01, 6)
    assert beats.came(70.0 + BEAT_S, 6)


def test_without_a_record_that_waits_there_is_no_beat() -> None:
    beats = Beats()
    beats.came(70.0, 5)
    assert beats.came(71.0, 6)
    assert not any(beats.came(71.0 + seconds, 0) for seconds in range(100))
    assert beats.due_in_s(200.0, 0) == BEAT_S


def test_what_could_not_be_sent_at_a_beat_has_another_one() -> None:
    beats = Beats()
    beats.came(70.0, 5)
    assert beats.came(71.0, 5)
    assert not beats.came(71.1, 5)
    assert beats.came(71.1 + BEAT_S, 5)


@pytest.mark.parametrize("rate", [100, 26_000, 130_000, 260_000])
def test_the_wait_and_the_work_that_waits_are_one_beat_together_at_every_rate(rate: int) -> None:
    came = _beats_in(20.0, rate)
    gap_s = (came[-1] - came[0]) / (len(came) - 1)
    assert gap_s + rate * RECORD_S * gap_s == pytest.approx(BEAT_S, abs=0.04)


def test_beats_of_very_fast_ranks_keep_a_least_distance() -> None:
    came = _beats_in(5.0, 50e6)
    assert min(after - before for before, after in pairwise(came)) >= BEAT_LEAST_S
