"""The exit of a process that served, although a client's statement may still be running.

Stage: wiring, last. DuckDB checks for an interrupt between two vectors of rows; a statement whose vector
takes minutes keeps its thread meanwhile, and Python waits for every thread before it exits. What was
acknowledged is on disk once an aggregator is closed, so nothing is lost with such a thread. Loads nothing of
ours.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

CALLS: Final = "rankmem-rpc"
"""Prefix of the names of threads that answer calls."""
LAST_WAIT_S: Final = 2.0
"""For cancelled calls to end: those without a statement take milliseconds."""


def drain_on_signals(drain: Callable[[], None], kill: Callable[[], None] = lambda: None) -> None:
    """The first SIGTERM or SIGINT drains, the second kills and ends this process; what is acknowledged is
    stored.
    """
    is_draining = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_draining
        if is_draining:
            kill()
            os._exit(128 + number)
        is_draining = True
        drain()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def leave(code: int) -> int:
    """Returns the exit code; exits the process with it at once if a call is still running.

    Main thread, after every aggregator of this process is closed.
    """
    deadline = time.monotonic() + LAST_WAIT_S
    calls = [thread for thread in threading.enumerate() if thread.name.startswith(CALLS)]
    for call in calls:
        call.join(max(0.0, deadline - time.monotonic()))
    if any(call.is_alive() for call in calls):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
