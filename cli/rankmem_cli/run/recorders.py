"""Who records into the database that another ``rankmem run`` of this host holds: a lock beside the file.

Stage: ``rankmem run``. Each guest holds the file ``<database>.guests`` shared while it records; the run that
holds the database asks for it alone before it closes. The kernel gives a lock back with its process, so none
is left behind by a kill.
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
    """This process is a guest of the database's holder. Where no lock can be had it is one unseen."""
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
    """Whether a guest is there; where none is, the file goes."""
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
    """A descriptor that holds the file that is there now: a guest that left may just have removed one."""
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
    """Whether what is held is the file that has the name now."""
    try:
        return os.path.samestat(os.fstat(held), os.stat(path))
    except FileNotFoundError:
        return False


def _path(database_path: Path) -> Path:
    return database_path.with_name(database_path.name + SUFFIX)
