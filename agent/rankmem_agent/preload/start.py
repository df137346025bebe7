"""From the interpreter's start to the agent's: a process that would be a rank waits for its import of torch.

Stage: trainer, and every other Python process below ``rankmem run``, on the main thread. In: which rank this
process would be (:mod:`rankmem_agent.preload.rank_detection`); out: the marks for its children in the
environment, and the agent once torch is there. Until then it imports next to nothing.
"""

from __future__ import annotations

import os
import sys

from rankmem_agent.preload.rank_detection import LAUNCH, MARK, DetectedRank, detect_rank


def attach_if_rank() -> None:
    """Makes this process a candidate, unless it is a launcher: the agent comes with torch."""
    mine = detect_rank(os.environ, sys.orig_argv)
    if mine is not None:
        attach_after_torch(mine)


def attach_after_torch(mine: DetectedRank) -> None:
    """Marks the environment for the children and waits for the user's own import of torch."""
    from rankmem_agent.preload import torch_import

    os.environ[MARK] = mine.mark()
    os.environ[LAUNCH] = str(mine.launch_pid)
    torch_import.after_import(lambda: _attach(mine))


def cancel() -> None:
    """Waits for no import of torch any more."""
    from rankmem_agent.preload import torch_import

    torch_import.cancel()


def _attach(mine: DetectedRank) -> None:
    try:
        from rankmem_agent.preload.process_kind import attach_in_time  # only now: the process has torch
    except Exception as error:  # noqa: BLE001  the trainer's guard: else the user's import of torch fails
        from rankmem_agent.hooks.guard import Guard
        from rankmem_agent.preload.failed_start import record_failed_start
        from rankmem_agent.signals import raise_of_handler

        Guard(mine.rank).failed(error)
        record_failed_start(mine, error)
        raise_of_handler(error)
        return
    attach_in_time(mine)
