"""The user's command as a child process: untouched streams, forwarded signals, the shell's exit code.

Stage: ``rankmem run``, around the training. In come a command and an environment, out goes an exit code.
Runs in the main thread (Python delivers signals there alone). It never reads or writes the child's
streams and never sends a signal that the child has already got, from the terminal or with its process group.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from rankmem_agent.spool.exits import Exit
from rankmem_agent.spool.layout import ExitKind
from rankmem_cli.run.witness import Witness

FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
"""Keys of a terminal: the kernel sends them to the whole foreground process group, the child included."""
FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, *FROM_TERMINAL)
ASKS_TO_STOP: Final = frozenset({signal.SIGTERM, signal.SIGHUP, *FROM_TERMINAL})

CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
MEANWHILE_EVERY_S: Final = 5.0
"""Between two calls of what is to be done while the command runs: no load, and soon enough for a spool."""
SIGNALLED: Final = 128
"""Exit codes as POSIX shells give them; 128 + n for a death by signal n."""

_BECOME: Final = """
import os, signal, sys
os.set_inheritable(int(sys.argv[1]), False)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by every Python; subprocess undoes it, too
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(int(sys.argv[1]), str(error.errno).encode())
    os._exit(126)
"""
"""Becomes the command after a descriptor to report a failure on, with SIGCHLD ignored."""


class SignalRelay:
    """Takes this process's signals while it is entered: passes them to the child, or counts them without one.

    A signal that was ignored when we started (``nohup``) stays ignored, for the child as well. SIGCHLD is one
    that we cannot ignore ourselves: the kernel would keep no exit code for us.
    """

    def __init__(self) -> None:
        self.stop_requested = threading.Event()
        """Set by the first signal that asks to stop while no child runs."""
        self.num_stop_requests = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        self._expects_child = True
        self._previous: dict[int, Any] = {}
        self._witness: Witness | None = None

    def __enter__(self) -> Self:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._received)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._witness = Witness(FORWARDED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._witness is not None:
            self._witness.close()

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        ended: Callable[[int, Exit], None] = lambda pid, exited: None,
    ) -> int:
        """Runs the command to its end and returns its exit code, 128 + n if signal n killed it.

        Args:
            command: program and arguments.
            environment: all its variables.
            folder: where it runs; None: here.
            meanwhile: called every few seconds while it runs.
            ended: called with its pid and how it ended while the kernel still keeps its remains: whoever
                looks for them finds them, or what this wrote. Neither of them may raise.

        Raises:
            OSError: it could not be started.
        """
        # exec gives the child default handlers for what we catch, so nothing of the relay reaches it.
        start = _start_ignoring_children if signal.SIGCHLD in self._previous else _start
        with start(command, environment, folder) as process:
            self._process = process
            for number in self._waiting:
                process.send_signal(number)
            _wait(process, meanwhile)
            _tell(process.pid, ended)
            process.wait()
        self._process, self._expects_child = None, False
        return process.returncode if process.returncode >= 0 else SIGNALLED - process.returncode

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._process is not None:
            if not self._child_has_got(self._process, number):
                self._process.send_signal(number)
        elif self._expects_child:
            self._waiting.append(number)  # between fork and here: the child gets it as soon as it is known
        elif number in ASKS_TO_STOP:
            self.num_stop_requests += 1
            self.stop_requested.set()

    def _child_has_got(self, process: subprocess.Popen[bytes], number: int) -> bool:
        """Whether a signal to us went to the whole process group, the child included."""
        try:
            if os.getpgid(process.pid) != os.getpgrp():
                return False  # it has made a group of its own
        except ProcessLookupError:
            return False
        seen = self._witness.has_got(number) if self._witness is not None else None
        return seen if seen is not None else number in FROM_TERMINAL and in_foreground()


def _start(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=dict(environment), cwd=folder)


def _start_ignoring_children(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None
) -> subprocess.Popen[bytes]:
    """As ``_start``, with SIGCHLD ignored in the command as it was in us, by an interpreter that becomes it.

    Nothing of Python may run between our own fork and its exec (``preexec_fn``): gRPC, whose threads a fork
    leaves behind, crashes there.
    """
    failure_fd, report_fd = os.pipe()
    with os.fdopen(failure_fd, "rb") as failure:
        try:
            becoming = (sys.executable, "-I", "-S", "-c", _BECOME, str(report_fd), *command)
            process = subprocess.Popen(becoming, env=dict(environment), cwd=folder, pass_fds=(report_fd,))
        finally:
            os.close(report_fd)
        number = failure.read()  # until exec closes it
    if number:
        process.wait()
        raise OSError(int(number), os.strerror(int(number)), command[0])
    return process


def _tell(pid: int, ended: Callable[[int, Exit], None]) -> None:
    left = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if left is not None:
        kind = ExitKind.EXIT if left.si_code == os.CLD_EXITED else ExitKind.SIGNAL
        ended(pid, Exit(kind=kind, code=left.si_status))


def _wait(process: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> None:
    """Until the process has ended; the kernel says when, so nobody polls."""
    try:
        ended_fd = os.pidfd_open(process.pid)
    except OSError:  # a kernel before 5.3
        return
    try:
        ended = select.poll()
        ended.register(ended_fd, select.POLLIN)
        while not ended.poll(MEANWHILE_EVERY_S * 1000):
            meanwhile()
    finally:
        os.close(ended_fd)


def in_foreground() -> bool:
    """Whether our process group is the terminal's foreground group: its keys then reach the child as well.
    What is left to go by without a witness."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
