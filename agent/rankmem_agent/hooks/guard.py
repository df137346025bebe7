"""The trainer's guard: whatever goes wrong in the agent is said once, and the agent is off.

Stage: trainer, every thread in which the agent's code runs. Comes in: an exception of ours. Goes out: one
line on stderr; the training goes on as if there were no agent. Nothing is raised, nothing is printed twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from rankmem_protos.errors import RankmemError

LINE_CHARS_MAX: Final = 600
"""A compiler's whole output in every rank's log would bury the training's own."""


class Guard:
    """Says the first failure and switches everything off.

    Args:
        rank: for the line on stderr, where the output of all ranks meets.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        """For the lines to come: a process group may number the process anew."""
        self._pid = os.getpid()
        self._switches: list[Callable[[], None]] = []
        self.failures = 0

    def when_off(self, switch: Callable[[], None]) -> None:
        """Has ``switch`` called on the first failure. It must not raise."""
        self._switches.append(switch)

    def failed(self, error: Exception) -> None:
        """Counts a failure; the first one is said and switches the agent off."""
        self.failures += 1
        if self.failures > 1:
            return
        for switch in self._switches:
            switch()
        self.say(f"the agent is off: {described(error)}")

    def say(self, text: str) -> None:
        """Writes one line to stderr; a forked child keeps silent."""
        if os.getpid() != self._pid or sys.stderr is None:
            return
        line = " | ".join(part.strip() for part in text.splitlines() if part.strip())[:LINE_CHARS_MAX]
        with contextlib.suppress(OSError, ValueError):  # closed, or its reader is gone
            sys.stderr.write(f"rankmem: rank {self.rank}: {line}\n")
            sys.stderr.flush()


def unseen_by_modes() -> AbstractContextManager[None]:
    """While it is open, the user's ``TorchFunctionMode`` and tensor classes do not see us ask tensors."""
    import torch  # loaded, since there are modules

    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


def described(error: Exception) -> str:
    """What happened and what to try."""
    if isinstance(error, RankmemError):
        return str(error)
    return f"{type(error).__name__}: {error} (try: rankmem doctor)"
