"""The end of a session on this host: its folder goes once the launcher says that nobody else will come.

Stage: between ``rankmem run``, which closes a session after its command has ended, and the shipper, which
removes the folder under its lock when all is delivered. A session that nobody closes keeps its folder: no
launcher of ours is there to know whether another rank comes, and the numbers of its launches must outlive
a pause. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from rankmem_agent.ship.election import take_lock

MARK_NAME: Final = "closed"


def close(session_dir: Path) -> None:
    """Says that no rank will come any more. Ranks that are there are recorded and delivered to their end."""
    (session_dir / MARK_NAME).touch()


def is_closed(session_dir: Path) -> bool:
    """Whether :func:`close` was called for this folder."""
    return (session_dir / MARK_NAME).exists()


def remove_if_over(session_dir: Path) -> bool:
    """Removes the folder of a closed session in which no spool is left; the caller holds the lock."""
    if not is_closed(session_dir) or _has_spools(session_dir):
        return False
    # Another run of the session may make a spool at this very moment: no folder goes that is not empty.
    with contextlib.suppress(OSError):
        with os.scandir(session_dir) as entries:
            files = [entry.path for entry in entries if not entry.is_dir(follow_symlinks=False)]
        for path in files:
            os.unlink(path)
        os.rmdir(session_dir)
    return not session_dir.exists()


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
