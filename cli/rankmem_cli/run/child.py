"""Runs the user's command as a child process: streams untouched, signals forwarded, a shell's exit code.

Stage: ``rankmem run``, around the training. In: a command and an environment. Out: an exit code. Runs in the
main thread, the only one to which Python delivers signals. It never reads or writes the child's streams, and
never sends a signal that the child has already received from the terminal or with its process group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
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
"""Sent by terminal keys: the kernel signals the whole foreground process group, including the child."""
FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, *FROM_TERMINAL)
ASKS_TO_STOP: Final = frozenset({signal.SIGTERM, signal.SIGHUP, *FROM_TERMINAL})

CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
MEANWHILE_EVERY_S: Final = 5.0
"""Between two calls of ``meanwhile``: no load, and soon enough for a spool."""
_LOOKED_AT_BYTES: Final = 128
SIGNALLED: Final = 128
"""Exit codes as POSIX shells give them; 128 + n for a death by signal n."""

_BECOME: Final = """
import os, signal, sys
os.set_inheritable(int(sys.argv[1]), False)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # every Python ignores them; subprocess restores them too
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(int(sys.argv[1]), str(error.errno).encode())
    os._exit(126)
"""
"""Replaces itself with the command, with SIGCHLD ignored. Arguments: the descriptor on which to report a
failure, then the command."""


class SignalRelay:
    """A context that forwards this process's signals to the child; without a child it counts them.

    A signal that was ignored when we started (``nohup``) stays ignored, also in the child. SIGCHLD alone
    cannot stay ignored in this process: the kernel would keep no exit code for us.

    Args:
        is_last: after it this process does nothing but exit with the command's code, which signals would
            replace: they are ignored then. SIGQUIT still ends a process that hangs.
    """

    def __init__(self, *, is_last: bool = False) -> None:
        self.stop_requested = threading.Event()
        """Set by a signal that asks to stop while no child runs."""
        self.num_stop_requests = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        self._expects_child = True
        self._is_last = is_last
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
        if self._witness is not None:
            self._witness.close()
        ignored = frozenset(FORWARDED) - {signal.SIGQUIT}
        has_ended = self._is_last and not self._expects_child
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if has_ended and number in ignored else handler)

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
            folder: its working folder; None: the current one.
            meanwhile: called every few seconds while it runs.
            ended: called with its pid and its exit while the process is still a zombie, so that another
                process finds either the zombie or what this wrote. Neither callback may raise.

        Raises:
            OSError: it could not be started.
        """
        # exec resets the handlers of the signals that we catch, so the child inherits nothing of the relay.
        start = _start_ignoring_children if signal.SIGCHLD in self._previous else _start
        with _as_a_shell_would(start, command, environment, folder) as process:
            self._process = process
            for number in self._waiting:
                _send(process, number)
            _wait(process, meanwhile)
            _report_exit(process.pid, ended)
            self._process, self._expects_child = None, False
        return process.returncode if process.returncode >= 0 else SIGNALLED - process.returncode

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._process is not None:
            if not self._child_received(self._process, number):
                _send(self._process, number)
        elif self._expects_child:
            self._waiting.append(number)  # between fork and here: sent to the child once it is known
        elif number in ASKS_TO_STOP:
            self.num_stop_requests += 1
            self.stop_requested.set()

    def _child_received(self, process: subprocess.Popen[bytes], number: int) -> bool:
        """Whether a signal that we received went to the whole process group, including the child."""
        try:
            if os.getpgid(process.pid) != os.getpgrp():
                return False  # it made its own group
        except ProcessLookupError:
            return False
        seen = self._witness.received(number) if self._witness is not None else None
        return seen if seen is not None else number in FROM_TERMINAL and in_foreground()


def _start(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=dict(environment), cwd=folder)


def _as_a_shell_would(
    start: Callable[[Sequence[str], Mapping[str, str], Path | None], subprocess.Popen[bytes]],
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None,
) -> subprocess.Popen[bytes]:
    """Starts the command; a script without an interpreter's line is ``/bin/sh``'s, as in execvp(3)."""
    try:
        return start(command, environment, folder)
    except OSError as error:
        script = shutil.which(command[0], path=environment.get("PATH"))
        if error.errno != errno.ENOEXEC or script is None or not _is_text(script):
            raise
        return start(("/bin/sh", script, *command[1:]), environment, folder)


def _is_text(path: str) -> bool:
    """Whether a shell would take it for a script, and not for a program of another machine."""
    with open(path, "rb") as file:
        return b"\0" not in file.read(_LOOKED_AT_BYTES)


def _start_ignoring_children(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None
) -> subprocess.Popen[bytes]:
    """As ``_start``, with SIGCHLD ignored in the command as it was here: an interpreter that execs it.

    No Python code may run between our fork and its exec (``preexec_fn``): gRPC crashes there, because a fork
    does not copy its threads.
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


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    """Not ``send_signal``: that reaps a child that has just ended, and its exit is still to be reported."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the command may run as another user
        os.kill(process.pid, number)


def _report_exit(pid: int, ended: Callable[[int, Exit], None]) -> None:
    left = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if left is not None:
        kind = ExitKind.EXIT if left.si_code == os.CLD_EXITED else ExitKind.SIGNAL
        ended(pid, Exit(kind=kind, code=left.si_status))


def _wait(process: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> None:
    """Waits until the process has ended, without polling: the kernel signals it on a descriptor."""
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
    """Whether our process group is the terminal's foreground group, so that its keys reach the child too.
    The fallback without a witness."""
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
