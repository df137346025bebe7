"""The program's own signal handlers amid our code: what they raise is the program's.

Stage: trainer, main thread, which alone runs them. While the agent attaches, publishes, drains or ends they
are put off: what one raises in the middle of it (KeyboardInterrupt, a timeout's exception) would be taken for
a failure of ours, leave half an agent behind, or print our frames in the user's terminal. In a hook that
would cost too much: there it is told from a failure of ours, and raised. Standard library only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal makes enums: 80 us of all signals, not 6
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any, Final

_SIGACTION_BYTES: Final = 256
"""More than ``struct sigaction`` has."""
_sigaction: Final = ctypes.CDLL(None).sigaction
"""Restores what Python does not know: the flags of ``signal.siginterrupt()``, a handler of a C library."""
_restored: ExitStack | None = None
"""While signals are put off: gives the program's handlers back."""


@contextmanager
def signals_put_off() -> Iterator[None]:
    """Keeps signals until the end of the block, where the program's own handlers get them.

    Nothing changes in another thread, which gets no signals, and for signals without a handler in Python.
    """
    global _restored
    if _restored is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    got: list[int] = []
    handlers: dict[int, Any] = {}

    def keep(number: int, frame: FrameType | None) -> None:
        got.append(number)

    try:
        with ExitStack() as restored:
            for number in (signal.SIGINT, *range(1, signal.NSIG)):
                handler = _signal.getsignal(number)
                if callable(handler) and number not in handlers:
                    handlers[number] = handler
                    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
                    _sigaction(number, None, action)
                    restored.callback(_sigaction, number, action, None)
                    restored.callback(signal.signal, number, handler)  # called first
                    signal.signal(number, keep)
            _restored = restored
            try:
                yield
            finally:
                _restored = None
    finally:
        _hand_over([(number, handlers[number]) for number in got])


def _forked() -> None:
    """In a child that another thread forked meanwhile: the block's end is not its own."""
    global _restored
    if _restored is not None:
        _restored.close()
        _restored = None


os.register_at_fork(after_in_child=_forked)


def _hand_over(kept: list[tuple[int, Any]]) -> None:
    """Calls each handler, whatever another raises; raises the last. Not by raising the signals anew: the
    wakeup descriptor has told asyncio's loop of them."""
    raised = None
    for number, handler in kept:
        try:
            handler(number, sys._getframe())
        except BaseException as error:  # noqa: BLE001  it is raised below
            raised = error
    try:
        if raised is not None:
            raise raised
    finally:
        del raised  # else the frames on its way would hold each other, and what is in them


def raise_of_handler(error: BaseException) -> None:
    """Raises it if a signal handler did: Python gives a handler the interrupted frame, which calls it."""
    from inspect import getargvalues  # only where something failed
    from traceback import walk_tb

    for (caller, _), (frame, _) in pairwise(walk_tb(error.__traceback__)):
        names, others, _, given = getargvalues(frame)
        arguments = [given.get(name) for name in names] + list(given.get(others or "", ()))
        if any(each is caller for each in arguments):
            raise error
