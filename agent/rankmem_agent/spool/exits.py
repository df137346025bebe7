"""How a rank's process ended, by its control page and the process's remains, and the name for it.

Stage: spool, reading side; shipper process, and ``rankmem run`` for the process that it started. In: the
control page, /proc. Out: :class:`Exit` and the ``end_reason`` of ``rank_info``. Standard library only.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_agent.spool.layout import CONTROL_FIELDS, ExitKind
from rankmem_agent.spool.process_stat import ENDED, START_TICKS, STATE, WAIT_STATUS, stat_of

FAILED: Final = 1
"""The exit code of an interpreter that an exception ended."""
_INTERRUPTED: Final = -2
"""That of one that an uncaught KeyboardInterrupt ended: it ends itself by SIGINT."""
_OFFSETS: Final = {field.name: field.offset for field in CONTROL_FIELDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    kind: ExitKind
    code: int
    """Exit status, or the signal's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An end as columns of ``rank_info``."""

    reason: str
    exit_code: int | None
    exception: str | None


def end_of(exited: Exit | None, exception: object, *, saw_end: bool) -> End:
    """The reason, exit code and exception of an end.

    Args:
        exited: how the process ended, where known.
        exception: the type that the interpreter reported last; it ended the process only if the code agrees.
        saw_end: its log has an END: the interpreter went through its exit.
    """
    code = None if exited is None else -exited.code if exited.kind is ExitKind.SIGNAL else exited.code
    raised = str(exception) if exception and saw_end and code in (None, FAILED, _INTERRUPTED) else None
    if raised:
        reason = "exception"
    elif exited is None:
        reason = "exit" if saw_end else "killed"
    elif exited.kind is ExitKind.SIGNAL:
        reason = "killed"
    elif not saw_end:
        reason = f"_exit {code}"
    else:
        reason = f"exit {code}" if code else "exit"
    return End(reason=reason, exit_code=code, exception=raised)


def exit_of_status(status: int) -> Exit:
    """The end that a status from ``waitpid`` stands for."""
    if os.WIFSIGNALED(status):
        return Exit(kind=ExitKind.SIGNAL, code=os.WTERMSIG(status))
    return Exit(kind=ExitKind.EXIT, code=os.WEXITSTATUS(status))


def exit_of_zombie(pid: int, start_ticks: int) -> Exit | None:
    """How a process ended for which its parent has not waited yet; None where nothing is left of it."""
    fields = stat_of(pid)
    if not fields or fields[STATE] not in ENDED or int(fields[START_TICKS]) != start_ticks:
        return None
    return exit_of_status(int(fields[WAIT_STATUS])) if len(fields) > WAIT_STATUS else None


def write_exit(spool_dir: Path, exited: Exit) -> None:
    """Writes it into the control page, unless one is there already: the kind last.

    Raises:
        OSError: there is no control page.
    """
    control = os.open(spool_dir / "control", os.O_RDWR | os.O_CLOEXEC)
    try:
        if int.from_bytes(os.pread(control, 4, _OFFSETS["exit_kind"]), "little") == ExitKind.UNREPORTED:
            os.pwrite(control, struct.pack("<I", exited.code & 0xFF), _OFFSETS["exit_code"])
            os.pwrite(control, struct.pack("<I", exited.kind), _OFFSETS["exit_kind"])
    finally:
        os.close(control)


def announce(spool_dir: Path) -> None:
    """Marks in the control page that the exit code follows END.

    Raises:
        OSError: there is no control page.
    """
    control = os.open(spool_dir / "control", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(control, struct.pack("<I", 1), _OFFSETS["exit_follows"])
    finally:
        os.close(control)
