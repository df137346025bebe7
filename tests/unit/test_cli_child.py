"""The command as a child: its exit code, its signals, and nothing of ours in between."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_cli.child import SignalDesk


@pytest.fixture
def children_are_ignored() -> Iterator[None]:
    """As ``trap '' CHLD`` leaves it, in whatever started us."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN, "as it was"
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("children_are_ignored")
def test_the_exit_code_is_known_where_the_ends_of_children_are_ignored() -> None:
    told: list[int] = []
    with SignalDesk() as desk:
        command = (sys.executable, "-S", "-c", "raise SystemExit(3)")
        code = desk.run(command, os.environ, ended=lambda pid, exited: told.append(exited.code))
    assert (code, told) == (3, [3])


@pytest.mark.usefixtures("children_are_ignored")
def test_the_command_ignores_the_signals_that_it_would_ignore_without_us(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    asks = f"import signal; open({str(seen)!r}, 'w').write(str(signal.getsignal(signal.SIGCHLD).value))"
    with SignalDesk() as desk:
        assert desk.run((sys.executable, "-S", "-c", asks), os.environ) == 0
    assert seen.read_text() == str(signal.SIG_IGN.value)
