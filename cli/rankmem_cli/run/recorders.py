"""The other runs on this host that record into the database of a ``rankmem run``: a lock beside the file.

Stage: ``rankmem run``. Each of them holds a shared lock on ``<database>.guests`` while it records; the run
that holds the database tries to lock it exclusively before it closes. The kernel releases the lock of a
process that dies, so a kill leaves none behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SUFFIX: Final = ".guests"


@contextlib.contextmanager
def register(database_path: Path) -> Iterator[None]:
    """Registers this process as recording into the database; without a lock it goes unnoticed."""
    held = -1
    with contextlib.suppress(OSError):
        held = _shared(_path(database_path))
    try:
        yield
    finally:
        if held >= 0:
            os.close(held)
            are_registered(database_path)


def are_registered(database_path: Path) -> bool:
    """Whether any other run is registered; if none is, removes the lock file."""
    path = _path(database_path)
    while True:
        try:
            held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(held, path):
                with contextlib.suppress(OSError):
                    path.unlink()
                return False
        except OSError:
            return True
        finally:
            os.close(held)


def _shared(path: Path) -> int:
    """A descriptor with a shared lock on the current file: a run that ended may just have removed another."""
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
            if _is_there(held, path):
                return held
        except OSError:
            os.close(held)
            raise
        os.close(held)


def _is_there(held: int, path: Path) -> bool:
    """Whether the descriptor is the file that now has the name."""
    try:
        return os.path.samestat(os.fstat(held), os.stat(path))
    except FileNotFoundError:
        return False


def _path(database_path: Path) -> Path:
    return database_path.with_name(database_path.name + SUFFIX)
