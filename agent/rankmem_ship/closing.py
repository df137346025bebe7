"""The end of a session on this host: its folder goes once the launcher says that nobody else will come.

Stage: between ``rankmem run``, which closes a session after its command has ended, and the shipper, which
removes the folder under its lock when all is delivered. A session that nobody closes keeps its folder: no
launcher of ours is there to know whether another rank comes, and the numbers of its launches must outlive
a pause.

A shipper that cannot deliver may be asked for the spools: ``rankmem run`` does so as it gives up, ``rankmem
ship`` where the shipper reaches no aggregator. It leaves if no rank lives. A file asks, not a signal: a
process id says nothing across PID namespaces. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

from rankmem_agent.spool.election import take_lock

MARK_NAME: Final = "closed"
ASKED_NAME: Final = "asked"
HAND_OVER_TIMEOUT_S: Final = 10.0
"""For a shipper to notice that it is asked, and to end its stream; it takes about half a second."""
_POLL_S: Final = 0.05
_ASKED_FOR_S: Final = 5.0
"""What was asked is over so long after it was asked last: who gave up, or was killed, waits no more."""


def close(session_dir: Path) -> None:
    """Says that no rank will come any more. Ranks that are there are recorded and delivered to their end.

    Where another run of the session has closed it, and all was delivered, there is no folder to say so in.
    """
    with contextlib.suppress(FileNotFoundError):
        (session_dir / MARK_NAME).touch()


def is_closed(session_dir: Path) -> bool:
    """Whether :func:`close` was called for this folder."""
    return (session_dir / MARK_NAME).exists()


def ask_for(session_dir: Path, timeout_s: float = HAND_OVER_TIMEOUT_S) -> int | None:
    """Has the shipper leave the spools to this process.

    Args:
        timeout_s: longest wait for it, in seconds.

    Returns:
        The descriptor that holds the lock; None where the shipper stays.

    Raises:
        OSError: the folder cannot be written, or has gone with its last spool.
    """
    over_s = time.monotonic() + timeout_s
    while (lock_fd := take_lock(session_dir)) is None:
        if time.monotonic() > over_s:
            return None
        (session_dir / ASKED_NAME).touch()  # again and again: one that has just begun takes it for an old one
        threading.Event().wait(_POLL_S)
    forget_asked(session_dir)
    return lock_fd


def is_asked(session_dir: Path) -> bool:
    """Whether somebody waits for the shipper to leave."""
    try:
        asked_s = (session_dir / ASKED_NAME).stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - asked_s) < _ASKED_FOR_S


def forget_asked(session_dir: Path) -> None:
    """What a shipper before this one was asked is over; the caller holds the lock."""
    (session_dir / ASKED_NAME).unlink(missing_ok=True)


def remove_if_over(session_dir: Path) -> bool:
    """Removes the folder of a closed session in which no spool is left; the caller holds the lock."""
    if not is_closed(session_dir) or _has_spools(session_dir):
        return False
    if not remove_with_files(session_dir):  # somebody came after all: what it records is not removed
        close(session_dir)
        return False
    return True


def remove_with_files(session_dir: Path) -> bool:
    """Removes a folder and the files in it; False where there is a folder in it, which stays."""
    with os.scandir(session_dir) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
    try:
        os.rmdir(session_dir)
    except OSError:
        return False
    return True


def remove_unless_shipping(session_dir: Path) -> None:
    """The same where the shipper may have left before the session was closed."""
    try:
        lock_fd = take_lock(session_dir)
    except FileNotFoundError:
        return  # the shipper was quicker
    if lock_fd is not None:
        remove_if_over(session_dir)
        os.close(lock_fd)


def _has_spools(session_dir: Path) -> bool:
    # Also those that are still being made, and what is left of deleted ones.
    with os.scandir(session_dir) as entries:
        return any(entry.is_dir(follow_symlinks=False) for entry in entries)
