"""The agent's last work, done although a signal's handler raises at its first instructions.

Stage: trainer, main thread, as the process ends. One that raises there, before it can be put off
(:mod:`rankmem_agent.signals`), would leave the log without its end. Standard library only.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
from collections.abc import Callable, Iterator
from typing import Final

TRIES: Final = 5
"""An interrupt that arrives in the 20 us before it can be put off ends a try, and nothing else. Where one
came every 0.2 ms that was 1 try of 12 (measured): five in a row are 4 in a million."""
_AFTER_THE_USERS: Final = -1000
"""multiprocessing's finalizers run in the order of their priority, the highest first."""


def when_the_program_ends(work: Callable[[], None], *, is_worker: bool = False) -> None:
    """Has ``work`` called when this process ends, again if an interrupt came before it could put it off.

    Args:
        work: called up to :data:`TRIES` times; once it has done its work it does nothing.
        is_worker: a child of multiprocessing's, which ends without atexit.
    """
    for _ in range(TRIES):
        one_try = _try(work)
        next(one_try)
        atexit.register(next, one_try, None)
        if is_worker:
            multiprocessing.util.Finalize(None, next, args=(one_try, None), exitpriority=_AFTER_THE_USERS)


def _try(work: Callable[[], None]) -> Iterator[None]:
    """Calls ``work`` when it is resumed; nothing is raised.

    A signal's handler may run at the first instruction of any function: one would raise there before its
    ``try`` begins. This one is in it already, and what resumes it (``next``) is no Python.
    """
    try:
        yield
        work()
    except BaseException:  # noqa: BLE001  the process is ending anyway; whatever work() raises, it reports
        pass
