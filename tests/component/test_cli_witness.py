"""Whether a signal went to the whole process group, by what is pending in a process beside us."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from rankmem_cli.run.witness import Witness

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


@pytest.fixture
def witness() -> Iterator[Witness]:
    found = Witness(NUMBERS)
    yield found
    found.close()


def send(witness: Witness, number: int) -> None:
    """As a signal to the group reaches it."""
    process = witness._process
    assert process is not None
    os.kill(process.pid, number)


def test_signals_to_the_group_at_one_moment_are_each_known(witness: Witness) -> None:
    for number in NUMBERS:
        send(witness, number)
    assert [witness.received(number) for number in NUMBERS] == [True] * 3


def test_each_counts_once(witness: Witness) -> None:
    for number in NUMBERS:
        send(witness, number)
    for number in NUMBERS:
        witness.received(number)
    assert [witness.received(number) for number in NUMBERS] == [False] * 3
    send(witness, signal.SIGUSR2)
    assert witness.received(signal.SIGUSR2) is True


def test_a_signal_that_comes_amid_the_look_for_another_takes_nothing_from_it(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner: list[bool | None] = []

    def looks_for_another(seconds: float) -> None:
        if not inner:
            inner.append(None)
            for number in (signal.SIGTERM, signal.SIGUSR1):
                send(witness, number)
            inner[0] = witness.received(signal.SIGUSR1)

    monkeypatch.setattr(time, "sleep", looks_for_another)
    assert witness.received(signal.SIGTERM) is True
    assert inner == [True]
    monkeypatch.undo()
    assert witness.received(signal.SIGTERM) is False
