"""What is seen of a process reaches its candidate, and what that answers reaches the log."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hook_recorder import Recorded
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.preload import deciding
from rankmem_agent.preload.candidate import Evidence
from rankmem_agent.preload.deciding import Deciding
from rankmem_agent.preload.evidence import Group
from rankmem_agent.spool.layout import Kind, Missing

GROUP = Group(rank=2, world_size=4, rendezvous="29500")


class FakeCandidate:
    """Keeps the evidence that it is given."""

    is_published = False

    def __init__(self) -> None:
        self.given: list[tuple[Evidence, Group | None]] = []
        self.contradiction = ""
        self.meanwhile: Callable[[], None] = lambda: None

    def gives(self, evidence: Evidence, group: Group | None) -> dict[str, int] | None:
        self.given.append((evidence, group))
        self.meanwhile()
        return None


Made = tuple[Deciding, FakeCandidate, Recorded]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(deciding, "current_group", lambda: None)
    candidate, recorded = FakeCandidate(), Recorded()
    fake: Any = candidate
    return Deciding(fake, Guard(0), recorded, None), candidate, recorded


def test_a_process_group_that_numbers_a_known_rank_otherwise_is_told_in_the_log_once(made: Made) -> None:
    deciding_, candidate, recorded = made
    candidate.contradiction = "before"
    deciding_.stepped()
    assert recorded.records == []

    def contradict() -> None:
        candidate.contradiction = "recorded as rank 0 of 1, but its process group makes it rank 2 of 4"

    candidate.meanwhile = contradict
    for _ in range(2):
        deciding_._shows(Evidence.GROUP, GROUP)
    (off,) = [fields for kind, fields in recorded.records if kind is Kind.OFF]
    assert off["missing"] == Missing.NAMES
    assert recorded.strings[off["detail"]] == candidate.contradiction


def test_a_process_group_that_comes_while_a_decision_is_under_way_is_decided_on_after_it(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    deciding_, candidate, _ = made

    def grouped() -> None:  # another thread, or a signal's handler
        candidate.meanwhile = lambda: None
        monkeypatch.setattr(deciding, "current_group", lambda: GROUP)
        deciding_._shows(Evidence.GROUP, GROUP)
        assert [evidence for evidence, _ in candidate.given] == [Evidence.STEP], "one at a time"

    candidate.meanwhile = grouped
    deciding_.stepped()
    assert candidate.given == [(Evidence.STEP, None), (Evidence.GROUP, GROUP)]


def test_a_step_that_comes_while_a_decision_is_under_way_asks_for_no_group(made: Made) -> None:
    deciding_, candidate, _ = made
    candidate.meanwhile = deciding_.stepped
    deciding_._shows(Evidence.BUSY)
    assert [evidence for evidence, _ in candidate.given] == [Evidence.BUSY]
    candidate.meanwhile = lambda: None
    deciding_.stepped()
    assert candidate.given[1:] == [(Evidence.STEP, None)], "the next step shows it"


class TooLong(Exception):
    """What the program raises when its time is up."""


def test_what_a_handler_raises_as_a_decision_begins_is_the_programs_and_the_next_is_made(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class SignalledOnce:
        """A lock; a signal comes between its acquisition and the next instruction."""

        def __init__(self) -> None:
            self.genuine = threading.Lock()
            self.release = self.genuine.release
            self.signals = [signal.SIGALRM]

        def acquire(self, *, blocking: bool) -> bool:
            acquired = self.genuine.acquire(blocking=blocking)
            if self.signals:
                signal.raise_signal(self.signals.pop())
            return acquired

    def times_up(number: int, frame: object) -> None:
        raise TooLong

    deciding_, candidate, _ = made
    monkeypatch.setattr(deciding_, "_is_deciding", SignalledOnce())
    before = signal.signal(signal.SIGALRM, times_up)
    try:
        with pytest.raises(TooLong):
            deciding_.stepped()
    finally:
        signal.signal(signal.SIGALRM, before)
    deciding_._shows(Evidence.GROUP, GROUP)
    assert [evidence for evidence, _ in candidate.given] == [Evidence.STEP, Evidence.GROUP]
    assert capsys.readouterr().err == ""
