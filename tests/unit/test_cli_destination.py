"""The embedded aggregator yields to the training that the same process starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import rankmem_aggregator.server  # noqa: F401  its imports start idle threads of their own
from rankmem_agent.ship.election import NICENESS
from rankmem_cli.destination import open_destination
from rankmem_cli.options import Place


def _niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_threads_of_the_embedded_aggregator_yield_and_the_command_does_not(tmp_path: Path) -> None:
    own = _niceness(threading.get_native_id())
    before = set(os.listdir("/proc/self/task"))
    with open_destination(Place(db=tmp_path / "mem.duckdb", aggregator=None)):
        started = set(os.listdir("/proc/self/task")) - before
        writer = next(thread for thread in threading.enumerate() if thread.name == "rankmem-writer")
        assert str(writer.native_id) in started
        assert {_niceness(int(thread)) for thread in started} == {min(own + NICENESS, 19)}
        asked = [sys.executable, "-c", "import os; print(os.nice(0))"]
        assert int(subprocess.check_output(asked)) == own
    assert _niceness(threading.get_native_id()) == own
