"""Tells a signal to this process from one to its whole process group, which the training has got as well.

Stage: ``rankmem run``, while its command runs. The kernel does not say whom else a signal was sent to. So a
process that does nothing stands beside the command in the same group, with the signals blocked that we
forward: one that it has got too was sent to all of us (a terminal's key, ``kill -- -PGID``, ``timeout``,
Slurm, which signals each process of a job step), and one that it has not was meant for us alone (Kubernetes,
``kill PID``). Whether a signal waits for it is read from /proc: the witness need not run for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

COMMAND: Final = ("cat",)
"""Any program that waits: this one ends with us, when nobody holds its stdin any more."""
WAIT_S: Final = 0.05
"""A signal to a group, or to every process of a job step, reaches the next one within this."""
_LOOK_EVERY_S: Final = 0.005


class Witness:
    """A process that gets what our process group gets.

    Args:
        numbers: signals that it waits for.
    """

    def __init__(self, numbers: Collection[int]) -> None:
        self._numbers = frozenset(numbers)
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def has_got(self, number: int) -> bool | None:
        """Whether a signal that we have just got was sent to it as well; None where that cannot be known."""
        deadline = time.monotonic() + WAIT_S
        while (waiting := self._waiting()) is not None:
            if number in waiting:
                self.close()
                self._start()  # a signal that waits already would say nothing of the next one
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_EVERY_S)
        return None

    def close(self) -> None:
        """Ends the process. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _start(self) -> None:
        # The mask is inherited: no signal finds the witness unprepared.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        try:
            with contextlib.suppress(OSError):  # no such program, no more processes
                self._process = subprocess.Popen(
                    COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _waiting(self) -> frozenset[int] | None:
        """The signals that wait for it; None where it has gone, or /proc is hidden."""
        if self._process is None:
            return None
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if os.getpgid(self._process.pid) != os.getpgrp() or fields["State"].startswith(("Z", "X")):
                return None
            waiting = int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)
        except (OSError, KeyError, ValueError):
            return None
        return frozenset(number for number in self._numbers if waiting >> (number - 1) & 1)
