"""Spools are flushed together, within a second of what they hold: sooner, the more of it there is."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rankmem_ship.flush_timer import FLUSH_INTERVAL_LEAST_S, FLUSH_INTERVAL_S, RECORD_S, FlushTimer


def _flushes_in(seconds: float, records_per_s: float, step_s: float = 0.01) -> list[float]:
    """When flushes come while records are written at this rate, and go out at each flush."""
    timer, due, sent = FlushTimer(), [], 0
    for number in range(round(seconds / step_s)):
        written = int(records_per_s * number * step_s)
        if timer.is_due(1000 + number * step_s, written - sent):
            due.append(1000 + number * step_s)
            sent = written
    return due


def test_a_flush_is_due_a_while_after_the_first_record_and_not_before() -> None:
    timer = FlushTimer()
    assert not timer.is_due(50.0, 0)
    assert not timer.is_due(70.0, 5)
    assert not timer.is_due(70.0 + FLUSH_INTERVAL_S - 0.01, 6)
    assert timer.is_due(70.0 + FLUSH_INTERVAL_S, 6)


def test_without_a_record_that_waits_there_is_no_flush() -> None:
    timer = FlushTimer()
    timer.is_due(70.0, 5)
    assert timer.is_due(71.0, 6)
    assert not any(timer.is_due(71.0 + seconds, 0) for seconds in range(100))
    assert timer.due_in_s(200.0, 0) == FLUSH_INTERVAL_S


def test_what_could_not_be_sent_at_a_flush_has_another_one() -> None:
    timer = FlushTimer()
    timer.is_due(70.0, 5)
    assert timer.is_due(71.0, 5)
    assert not timer.is_due(71.1, 5)
    assert timer.is_due(71.1 + FLUSH_INTERVAL_S, 5)


@pytest.mark.parametrize("rate", [100, 26_000, 130_000, 260_000])
def test_the_wait_and_the_work_that_waits_are_one_interval_together_at_every_rate(rate: int) -> None:
    due = _flushes_in(20.0, rate)
    gap_s = (due[-1] - due[0]) / (len(due) - 1)
    assert gap_s + rate * RECORD_S * gap_s == pytest.approx(FLUSH_INTERVAL_S, abs=0.04)


def test_flushes_of_very_fast_ranks_keep_a_least_distance() -> None:
    due = _flushes_in(5.0, 50e6)
    assert min(after - before for before, after in pairwise(due)) >= FLUSH_INTERVAL_LEAST_S
