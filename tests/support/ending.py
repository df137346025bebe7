"""Waits for the commands of a test. One that does not end is ended with all its processes, each of which says
first where its threads are (``PYTHONFAULTHANDLER``, set by ``main_job.environment``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

TO_SAY_S: Final = 10.0
"""What a process has to write its threads down."""


def outputs(
    runs: Sequence[subprocess.Popen[str]], timeout_s: float, text_in: str | None = None
) -> list[tuple[str, str]]:
    """(stdout, stderr) of each, once all have ended; fails with what they said if one has not in time."""
    over_s = time.monotonic() + timeout_s
    try:
        return [run.communicate(text_in, max(0.0, over_s - time.monotonic())) for run in runs]
    except subprocess.TimeoutExpired as late:
        said = [_said_as_it_is_ended(run) for run in runs]
        raise AssertionError("\n".join([f"did not end in {timeout_s:.0f} s: {late.cmd}", *said])) from None


def _said_as_it_is_ended(run: subprocess.Popen[str]) -> str:
    if run.returncode is not None:
        return f"another, which ended with {run.returncode}"
    pids = _tree(run.pid)
    for number in (signal.SIGABRT, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                time.sleep(0.1)  # one after the other: they write to one pipe
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, said = run.communicate(timeout=TO_SAY_S)
            return f"processes: {len(pids)}, ended now. They said:\n{out or ''}\n{said or ''}"
    return f"processes: {len(pids)}, which not even SIGKILL ended"


def _tree(root: int) -> list[int]:
    """A process and those that come from it, without those whose parent has ended."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found
