"""Ctrl-C while the agent is at work: the user's own handler has it as soon as that is done.

Stage: trainer, main thread, while the agent attaches, publishes or ends. A KeyboardInterrupt in the middle of
it would leave half an agent behind, or print our frames in the user's terminal. Standard library only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Keeps SIGINT until the end of the block, where it is raised anew.

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
            signal.raise_signal(signal.SIGINT)
