"""Restarts a shipper that died: done now and then by any process that outlives one.

Stage: between trainer and shipper, like :mod:`rankmem_agent.spool.election`. Comes in: a look from the caller
that passes by often enough (a rank at the end of a training step, ``rankmem run`` while it waits for its
command). Goes out: a new shipper where the session's lock is free, or nothing. A look is a comparison of
times, and every few seconds one attempt at the lock (some 10 us); it starts no thread, and raises nothing:
without a shipper the spool stays on disk. Standard library only.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool import folder
from rankmem_agent.spool.election import elect

LOOK_EVERY_S: Final = 10.0
"""Between two attempts at the lock. A spool of the default size holds what a busy rank writes in minutes."""
LOOK_EVERY_MAX_S: Final = 600.0
"""The same where the shippers that were started ended again: twice as long each time, up to here."""


class Reelection:
    """Sees to it that a session has a shipper on this host.

    Args:
        session_dir: the folder of the session on this host.
        every_s: between two attempts at the lock, in seconds.
        elect_shipper: for tests.
    """

    def __init__(
        self,
        session_dir: Path,
        *,
        every_s: float = LOOK_EVERY_S,
        elect_shipper: Callable[[Path], bool] = elect,
    ) -> None:
        self.num_started = 0
        """Shippers started here."""
        self._session_dir = session_dir
        self._every_s = every_s
        self._elect = elect_shipper
        self._pause_s = every_s
        self._next_s = time.monotonic() + every_s

    def look(self) -> None:
        """Starts a shipper if it is time to look, there are spools, and none ships them."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._pause_s
        try:
            started = bool(folder.spools(self._session_dir)) and self._elect(self._session_dir)
        except (OSError, subprocess.SubprocessError) as error:
            raise_of_handler(error)
            started = True  # as one that ended at once
        self.num_started += started
        self._pause_s = min(2 * self._pause_s, LOOK_EVERY_MAX_S) if started else self._every_s
