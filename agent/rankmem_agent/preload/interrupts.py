"""Ctrl-C while the agent is at work: the user's own handler has it as soon as that is done.

Stage: trainer, main thread, while the agent attaches, publishes or ends. A KeyboardInterrupt in the middle of
it would leave half an agent behind, or print our frames in the user's terminal; one at the first instructions
of the last work, before it can be put off, would leave the log without its end. Standard library only.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

TRIES: Final = 5
"""An interrupt that arrives in the 20 us before it can be put off ends a try, and nothing else. Where one
came every 0.2 ms that was 1 try of 12 (measured): five in a row are 4 in a million."""
_AFTER_THE_USERS: Final = -1000
"""multiprocessing's finalizers run in the order of their priority, the highest first."""


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Keeps SIGINT until the end of the block, where the user's handler gets it.

    Nothing changes in another thread, which gets no signals, and where SIGINT is ignored or kills.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    num_got = 0

    def keep(number: int, frame: FrameType | None) -> None:
        nonlocal num_got
        num_got += 1

    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for _ in range(num_got):
            # Not raised anew: the wakeup descriptor has told asyncio's loop of it.
            handler(signal.SIGINT, sys._getframe())


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
