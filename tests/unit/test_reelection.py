"""A shipper that died is started again: when, how often, and what that may raise (nothing)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rankmem_agent.spool import reelection
from rankmem_agent.spool.reelection import LOOK_EVERY_MAX_S, LOOK_EVERY_S, Reelection


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Elections:
    """Stands for ``elect``: whether the lock was free, at what times it was asked."""

    def __init__(self, clock: Clock) -> None:
        self.is_free = False
        self.fails = False
        self.asked_s: list[float] = []
        self._clock = clock

    def __call__(self, session_dir: Path) -> bool:
        self.asked_s.append(self._clock.now_s)
        if self.fails:
            raise OSError("no more processes")
        return self.is_free


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reelection, "time", clock)
    return clock


@pytest.fixture
def elections(clock: Clock) -> Elections:
    return Elections(clock)


@pytest.fixture
def looker(tmp_path: Path, elections: Elections) -> Reelection:
    spool = tmp_path / "0-0-1"
    spool.mkdir()
    (spool / "meta.json").write_text("{}")
    return Reelection(tmp_path, elect_shipper=elections)


def look_for(looker: Reelection, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1.0
        looker.look()


def test_where_a_shipper_is_at_work_the_lock_is_tried_now_and_then(
    looker: Reelection, clock: Clock, elections: Elections
) -> None:
    look_for(looker, clock, 5 * int(LOOK_EVERY_S))
    assert len(elections.asked_s) == 5
    assert looker.num_started == 0


def test_shippers_that_end_again_are_started_less_and_less_often(
    looker: Reelection, clock: Clock, elections: Elections
) -> None:
    elections.is_free = True
    look_for(looker, clock, 4000)
    pauses_s = [
        later - earlier for earlier, later in zip(elections.asked_s, elections.asked_s[1:], strict=False)
    ]
    assert pauses_s[:3] == [LOOK_EVERY_S, 2 * LOOK_EVERY_S, 4 * LOOK_EVERY_S]
    assert pauses_s[-1] == LOOK_EVERY_MAX_S
    elections.is_free = False
    look_for(looker, clock, 2 * int(LOOK_EVERY_MAX_S))
    assert elections.asked_s[-1] - elections.asked_s[-2] == LOOK_EVERY_S


def test_where_nothing_waits_to_be_shipped_no_shipper_is_started(
    tmp_path: Path, clock: Clock, elections: Elections
) -> None:
    elections.is_free = True
    look_for(Reelection(tmp_path / "not there yet", elect_shipper=elections), clock, 100)
    assert elections.asked_s == []


def test_an_election_that_fails_harms_nobody_and_is_tried_again(
    looker: Reelection, clock: Clock, elections: Elections
) -> None:
    elections.fails = True
    look_for(looker, clock, 100)
    assert 1 < len(elections.asked_s) < 10


def test_what_a_signal_handler_raises_amid_a_look_is_the_programs(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TooLong(OSError):
        pass

    def times_up(*_: object) -> None:
        raise TooLong

    def interrupted(session_dir: Path) -> list[Path]:
        signal.raise_signal(signal.SIGALRM)
        return []

    monkeypatch.setattr(reelection.folder, "spools", interrupted)
    look = Reelection(tmp_path, elect_shipper=Elections(clock)).look
    clock.now_s += LOOK_EVERY_S
    before = signal.signal(signal.SIGALRM, times_up)
    try:
        with pytest.raises(TooLong):
            look()
    finally:
        signal.signal(signal.SIGALRM, before)
