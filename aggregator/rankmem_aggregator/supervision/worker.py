"""``-m rankmem_aggregator.supervision.worker``: an aggregator's process, which a parent keeps alive.

Stage: wiring; its messages are described in ``parent_pipe``, the parent is ``supervisor``. Memory is bounded
before anything is loaded. However this process ends, what it has acknowledged is stored; the parent's death
ends it at once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from rankmem_aggregator import logs
from rankmem_aggregator.sandbox.running_statements import RunningStatements
from rankmem_aggregator.server.process_exit import drain_on_signals
from rankmem_aggregator.store.address import address_path, read_address
from rankmem_aggregator.supervision.crashed_statements import CrashedStatements, StatementGuard
from rankmem_aggregator.supervision.memory_bound import MemoryBound
from rankmem_aggregator.supervision.parent_pipe import (
    DRAINED,
    FAILED,
    NO_MEMORY,
    NOT_DRAINED,
    STOP,
    WorkerOptions,
    event_of_error,
)
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.without_pandas import leave_pandas_out

if TYPE_CHECKING:
    from rankmem_aggregator.server.aggregator import Aggregator

logger = logging.getLogger(__name__)

PREDECESSOR_WAIT_S: Final = 5.0
"""For an aggregator whose parent was killed to release the file and the port: it ends when it sees that."""
PREDECESSOR_LOOK_S: Final = 0.05
STDIN: Final = 0
OOM_SCORE: Final = 500
"""Beside a training: when the host's memory runs out, the kernel kills this one first; it is restarted."""
_NO_THREAD: Final = "can't start new thread"
"""What Python raises where there is no memory for its stack, or the system allows no more."""
_OOM_SCORE_PATH: Final = Path("/proc/self/oom_score_adj")


class _EventPipe:
    """Events for the process that started this one."""

    def __init__(self, events_fd: int) -> None:
        self._events_fd = events_fd
        os.set_blocking(events_fd, False)

    def send(self, **event: object) -> None:
        """Writes an event; a parent that does not read misses it."""
        try:
            os.write(self._events_fd, json.dumps(event).encode() + b"\n")
        except OSError as exc:
            logger.debug("the parent does not get %s: %s", event, exc)


class _Commands:
    """What comes on stdin: the options, then requests to stop, read in a thread of its own."""

    def __init__(self) -> None:
        self._data = b""
        self._lock = threading.Lock()
        self._asked_to_stop = False
        self._aggregator: Aggregator | None = None
        self.options = WorkerOptions.parse(self._next_line())

    def follow(self) -> None:
        """Starts to obey what comes from now on."""
        threading.Thread(target=self._follow, name="rankmem-parent-pipe", daemon=True).start()

    def apply_to(self, aggregator: Aggregator) -> None:
        """The commands are for this aggregator, also those that came before."""
        with self._lock:
            self._aggregator = aggregator
            if self._asked_to_stop:
                aggregator.stop()

    def _follow(self) -> None:
        while True:
            if self._next_line() == STOP:
                with self._lock:
                    self._asked_to_stop = True
                    if self._aggregator is not None:
                        self._aggregator.stop()

    def _next_line(self) -> bytes:
        # Not through sys.stdin: its lock, held by this thread, would be fatal when the interpreter ends.
        while b"\n" not in self._data:
            more = os.read(STDIN, 1 << 16)
            if not more:
                os._exit(FAILED)  # the parent is gone
            self._data += more
        line, end, self._data = self._data.partition(b"\n")
        return line + end


def main() -> int:
    """Serves until asked to stop; returns the exit code."""
    threading.excepthook = _thread_ended
    sys.unraisablehook = _thread_not_started
    leave_pandas_out()
    commands = _Commands()
    options = commands.options
    bound = MemoryBound(options.config.memory_max())
    _yield_to_training(options)
    commands.follow()
    events = _EventPipe(options.events_fd)
    crashed = CrashedStatements(refused=options.refused, suspects=set(options.suspects))
    guard = StatementGuard(
        RunningStatements(options.running_fd), crashed, lambda name: events.send(cleared=name)
    )
    try:
        aggregator = _opened(options, guard, bound)
    except RankmemError as exc:
        events.send(**event_of_error(exc))
        return FAILED
    _handle_signals(options, aggregator)
    commands.apply_to(aggregator)
    events.send(ready=aggregator.address, metrics=aggregator.metrics_address)
    try:
        aggregator.serve()
    except RankmemError as exc:
        logger.error("%s", exc.message)
        if _is_out_of_memory(exc):
            return NO_MEMORY  # there may be none to close with
        aggregator.close()
        return FAILED
    return DRAINED if aggregator.close() else NOT_DRAINED


def _yield_to_training(options: WorkerOptions) -> None:
    """Beside a training this process gives way to it, in CPU time and in memory."""
    if not options.is_embedded:
        logs.configure(options.config.log_format)
        return
    os.nice(options.niceness)
    try:
        _OOM_SCORE_PATH.write_text(str(OOM_SCORE))
    except OSError as exc:
        logger.debug("the kernel may not end this process first: %s", exc)


def _handle_signals(options: WorkerOptions, aggregator: Aggregator) -> None:
    if not options.is_embedded:
        drain_on_signals(aggregator.stop)
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the command, which sends STOP


def _opened(options: WorkerOptions, guard: StatementGuard, bound: MemoryBound) -> Aggregator:
    # Loaded only now: the threads that its libraries start have this one's niceness and bound.
    from rankmem_aggregator.server import aggregator as server

    path = options.config.database_path
    deadline_s = time.monotonic() + PREDECESSOR_WAIT_S
    while True:
        try:
            return server.open(options.config, guard=guard, bound=bound, pid=os.getppid())
        except RankmemError as exc:
            left_behind = address_path(path).exists() and read_address(path) is None
            if exc.code is not Code.CONFLICT or not left_behind or time.monotonic() > deadline_s:
                raise
        threading.Event().wait(PREDECESSOR_LOOK_S)


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    """A thread that ends for want of memory may be gRPC's: unnoticed, and its calls are never answered."""
    threading.__excepthook__(ended)
    if ended.exc_value is not None and _is_out_of_memory(ended.exc_value):
        os._exit(NO_MEMORY)


def _thread_not_started(failed: sys.UnraisableHookArgs) -> None:
    """The caller of a thread that had no memory to start waits for it for ever."""
    sys.__unraisablehook__(failed)
    if isinstance(failed.exc_value, MemoryError) or failed.exc_type is MemoryError:
        os._exit(NO_MEMORY)


def _is_out_of_memory(exc: BaseException) -> bool:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, MemoryError) or _NO_THREAD in str(cause):
            return True
        cause = cause.__cause__
    return False


def _run() -> NoReturn:
    """Serves, and ends the process although threads still run: a statement's, a shipper's, the one that
    reads commands. Nothing waits for them, nothing is lost, and the parent waits for the process alone."""
    code = FAILED
    try:
        code = main()
    except BaseException as exc:  # noqa: BLE001  the interpreter would wait for threads that never end
        code = NO_MEMORY if _is_out_of_memory(exc) else FAILED
        sys.excepthook(type(exc), exc, exc.__traceback__)
    finally:
        try:
            logging.shutdown()
        finally:
            os._exit(code)


if __name__ == "__main__":
    _run()
