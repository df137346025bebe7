"""The program's own signal handlers amid our code: what they raise is the program's.

Stage: trainer, main thread, which alone runs them. While the agent attaches, publishes, drains or ends they
are put off: what one raises in the middle of it (KeyboardInterrupt, a timeout's exception) would be taken for
a failure of ours, leave half an agent behind, or print our frames in the user's terminal. In a hook that
would cost too much: there it is told from a failure of ours, and raised. Standard library only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal makes enums: 80 us of all signals, not 6
import _thread
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any, Final

_SIGACTION_BYTES: Final = 256
"""More than ``struct sigaction`` has."""
_sigaction: Final = ctypes.PyDLL(None).sigaction  # CDLL would let another thread have the GIL, for 5 ms
_restored: ExitStack | None = None
"""While signals are put off: gives the program's handlers back."""


@contextmanager
def signals_put_off() -> Iterator[None]:
    """Keeps signals until the end of the block, where the program's own handlers get them.

    Nothing changes in another thread, which gets no signals, and for signals without a handler in Python.
    """
    global _restored
    if _restored is not None or _thread.get_ident() != threading.main_thread().ident:
        yield
        return
    got: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        got.append(number)

    try:
        with ExitStack() as restored:
            try:
                for number in (signal.SIGINT, *range(1, signal.NSIG)):
                    handler = _signal.getsignal(number)
                    if callable(handler) and handler is not keep:
                        restored.callback(_replace, number, keep, handler)
                        _replace(number, handler, keep)
            except ValueError as error:  # of signal(): this thread gets no signals, whatever threading says
                raise_of_handler(error)
            _restored = restored
            try:
                yield
            finally:
                _restored = None
    finally:
        _hand_over(got)


@contextmanager
def alone(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Holds the lock with signals put off: a handler that came back for it would wait for its own thread."""
    with signals_put_off(), lock:
        yield


def _replace(number: int, handler: Any, by: Any) -> None:
    """Replaces Python's handler, unless there is another one by now, and nothing below it: the flags of
    ``signal.siginterrupt()``, a handler of a C library or of faulthandler."""
    if _signal.getsignal(number) is handler:
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        _sigaction(number, None, action)
        _signal.signal(number, by)
        _sigaction(number, action, None)


def _forked() -> None:
    """In a child that another thread forked meanwhile: the block's end is not its own."""
    global _restored
    if _restored is not None:
        _restored.close()
        _restored = None


os.register_at_fork(after_in_child=_forked)


def _hand_over(kept: list[int]) -> None:
    """Has each signal handled, as it is by now, whatever another handler raises; raises the last. Not by
    raising all anew: the wakeup descriptor has told asyncio's loop of them."""
    raised = None
    for number in kept:
        handler = _signal.getsignal(number)
        try:
            if callable(handler):
                handler(number, sys._getframe())
            else:  # an earlier one has reset it: the second Ctrl-C kills
                signal.raise_signal(number)
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
