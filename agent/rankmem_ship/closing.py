"""The end of a session on this host: its folder is removed once the launcher has closed it.

Stage: between ``rankmem run``, which closes a session after its command has ended, and the shipper, which
removes the folder under its lock when all is delivered. A session that is never closed keeps its folder:
without our launcher it is not known whether another rank comes, and the numbers of its launches must outlive
a pause.

A shipper that cannot deliver may be asked to hand over the spools: by ``rankmem run`` as it gives up, by
``rankmem ship`` if the shipper cannot reach an aggregator. It leaves if no rank lives. The request is a file,
not a signal: a process id means nothing across PID namespaces. Standard library only.
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
"""For a shipper to notice the request and end its connection; it takes about half a second."""
_POLL_S: Final = 0.05
_ASKED_FOR_S: Final = 5.0
"""A request that is not renewed for this long is void: its process gave up, or was killed."""


def close(session_dir: Path) -> None:
    """Mark the session as closed: no further rank will come; running ones are recorded and delivered.

    If another run has closed the session, and all was delivered, the folder is gone and nothing is done.
    """
    with contextlib.suppress(FileNotFoundError):
        (session_dir / MARK_NAME).touch()


def is_closed(session_dir: Path) -> bool:
    """Whether :func:`close` was called for this folder."""
    return (session_dir / MARK_NAME).exists()


def ask_for(session_dir: Path, timeout_s: float = HAND_OVER_TIMEOUT_S) -> int | None:
    """Have the shipper hand over the spools to this process.

    Args:
        timeout_s: longest wait for it, in seconds.

    Returns:
        The descriptor that holds the lock; None if the shipper stays.

    Raises:
        OSError: the folder cannot be written, or has gone with its last spool.
    """
    over_s = time.monotonic() + timeout_s
    while (lock_fd := take_lock(session_dir)) is None:
        if time.monotonic() > over_s:
            return None
        (session_dir / ASKED_NAME).touch()  # repeatedly: a shipper that has just begun clears an old request
        threading.Event().wait(_POLL_S)
    forget_asked(session_dir)
    return lock_fd


def is_asked(session_dir: Path) -> bool:
    """Whether another process waits for the shipper to leave."""
    try:
        asked_s = (session_dir / ASKED_NAME).stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - asked_s) < _ASKED_FOR_S


def forget_asked(session_dir: Path) -> None:
    """Clear the request to an earlier shipper; the caller holds the lock."""
    (session_dir / ASKED_NAME).unlink(missing_ok=True)


def remove_if_over(session_dir: Path) -> bool:
    """Remove a closed session's folder if no spool is left; the caller holds the lock. Returns whether."""
    if not is_closed(session_dir) or _has_spools(session_dir):
        return False
    if not remove_with_files(session_dir):  # a rank came after all: what it records is not removed
        close(session_dir)
        return False
    return True


def remove_with_files(session_dir: Path) -> bool:
    """Remove a folder and the files in it; False if it has a subfolder, which stays."""
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
    """As :func:`remove_if_over`, if no shipper is at work: it may have left before the session was closed."""
    try:
        lock_fd = take_lock(session_dir)
    except FileNotFoundError:
        return  # the shipper removed it first
    if lock_fd is not None:
        remove_if_over(session_dir)
        os.close(lock_fd)


def _has_spools(session_dir: Path) -> bool:
    # Includes those still being made, and what is left of deleted ones.
    with os.scandir(session_dir) as entries:
        return any(entry.is_dir(follow_symlinks=False) for entry in entries)
