"""How a process ended, as the control page and its remains tell it, and what that is called."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_agent.preload import exits as preload_exits
from rankmem_agent.spool.exits import Exit, end_of, exit_of_zombie, write_exit
from rankmem_agent.spool.layout import ExitKind
from rankmem_agent.spool.process_stat import process_start_ticks
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_ship.spool_reader.segments import open_control

EXIT, AT_ONCE, SIGNAL = ExitKind.EXIT, ExitKind.AT_ONCE, ExitKind.SIGNAL


@pytest.mark.parametrize(
    ("kind", "code", "exception", "saw_end", "reason", "exit_code", "raised"),
    [
        (None, 0, None, True, "exit", None, None),
        (None, 0, "ValueError", True, "exception", None, "ValueError"),
        (None, 0, None, False, "killed", None, None),
        (EXIT, 0, None, True, "exit", 0, None),
        (EXIT, 1, "ValueError", True, "exception", 1, "ValueError"),
        (EXIT, 1, None, True, "exit 1", 1, None),
        (EXIT, 3, None, True, "exit 3", 3, None),
        (EXIT, 0, "ValueError", True, "exit", 0, None),
        (EXIT, 5, None, False, "_exit 5", 5, None),
        (AT_ONCE, 5, None, False, "_exit 5", 5, None),
        (AT_ONCE, 0, None, True, "exit", 0, None),
        (SIGNAL, 9, None, False, "killed", -9, None),
        (SIGNAL, 2, "KeyboardInterrupt", True, "exception", -2, "KeyboardInterrupt"),
        (SIGNAL, 11, None, True, "killed", -11, None),
    ],
)
def test_an_end_is_called_by_what_is_known_of_it(
    kind: ExitKind | None,
    code: int,
    exception: str | None,
    saw_end: bool,
    reason: str,
    exit_code: int | None,
    raised: str | None,
) -> None:
    exited = None if kind is None else Exit(kind=kind, code=code)
    end = end_of(exited, exception, saw_end=saw_end)
    assert (end.reason, end.exit_code, end.exception) == (reason, exit_code, raised)


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ("raise SystemExit(3)", Exit(kind=EXIT, code=3)),
        ("import os; os.kill(os.getpid(), 9)", Exit(kind=SIGNAL, code=signal.SIGKILL)),
    ],
)
def test_a_process_that_nobody_has_asked_about_yet_tells_how_it_ended(ends: str, found: Exit) -> None:
    process = subprocess.Popen([sys.executable, "-c", ends])
    ticks = process_start_ticks(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert exit_of_zombie(process.pid, ticks) == found
    assert exit_of_zombie(process.pid, ticks + 1) is None, "another process of that number"
    process.wait()
    assert exit_of_zombie(process.pid, ticks) is None


def test_the_first_word_on_an_exit_stands(tmp_path: Path) -> None:
    writer = PythonSpoolWriter(tmp_path / "s", 16 << 20)
    writer.close()
    write_exit(tmp_path / "s", Exit(kind=EXIT, code=3))
    write_exit(tmp_path / "s", Exit(kind=SIGNAL, code=9))
    _, control = open_control(tmp_path / "s" / "control")
    assert (int(control["exit_kind"][0]), int(control["exit_code"][0])) == (EXIT, 3)


@pytest.fixture
def genuine_exit() -> Iterator[None]:
    genuine = os._exit
    yield
    os._exit = genuine


def test_leaving_at_once_is_told_and_a_forked_child_is_not(tmp_path: Path, genuine_exit: None) -> None:
    left: list[int] = []

    def _exit(status: int) -> None:
        left.append(status)

    _exit.__qualname__ = "_exit"
    os._exit = _exit  # type: ignore[assignment]
    PythonSpoolWriter(tmp_path / "s", 16 << 20).abandon()
    preload_exits.watch_for_exit_at_once(lambda: tmp_path / "s")
    assert pickle.loads(pickle.dumps(os._exit)) is os._exit, "a process may be started with it as its target"
    child = os.fork()
    if child == 0:
        os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)  # what stands for the genuine one returns
    os.waitpid(child, 0)
    _, control = open_control(tmp_path / "s" / "control")
    assert int(control["exit_kind"][0]) == ExitKind.UNREPORTED
    os._exit(5)
    assert left == [5]
    assert (int(control["exit_kind"][0]), int(control["exit_code"][0])) == (AT_ONCE, 5)
