"""Distinguishes a signal to this process from one to its whole process group, including the training.

Stage: ``rankmem run``, while its command runs. The kernel does not tell who else received a signal. So an
idle process runs beside the command in the same group and blocks the signals that we forward. One that is
pending there too was sent to the group (a terminal's key, ``kill -- -PGID``, ``timeout``, Slurm, which
signals each process of a job step); any other was meant for us alone (Kubernetes, ``kill PID``). /proc lists
the pending signals, so the witness need not run for that.
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
"""Any program that waits: this one ends with us, when its stdin is closed."""
WAIT_S: Final = 0.05
"""Within this time a signal to a group, or to all processes of a job step, reaches every process."""
_LOOK_EVERY_S: Final = 0.005


class Witness:
    """A process that receives the signals of our process group.

    Args:
        numbers: the signals that it blocks.
    """

    def __init__(self, numbers: Collection[int]) -> None:
        self._numbers = frozenset(numbers)
        self._kept: set[int] = set()
        """Signals that a witness before this one received."""
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def received(self, number: int) -> bool | None:
        """Whether a signal that we just received was sent to it too; None where that cannot be determined."""
        deadline = time.monotonic() + WAIT_S
        while number not in self._kept:  # also by a look for another signal, which came amid this one
            if (pending := self._pending()) is None:
                return None
            if number in pending:
                self._kept |= pending  # others that came with it are still to be asked about
                self.close()
                self._start()  # one that is already pending would hide the next of its kind
            elif time.monotonic() > deadline:
                return False
            else:
                time.sleep(_LOOK_EVERY_S)
        self._kept.discard(number)
        return True

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
        # The mask is inherited: the witness blocks the signals from its start.
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

    def _pending(self) -> frozenset[int] | None:
        """Its pending signals; None where it is gone or /proc is hidden."""
        if self._process is None:
            return None
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if os.getpgid(self._process.pid) != os.getpgrp() or fields["State"].startswith(("Z", "X")):
                return None
            pending = int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)
        except (OSError, KeyError, ValueError):
            return None
        return frozenset(number for number in self._numbers if pending >> (number - 1) & 1)
