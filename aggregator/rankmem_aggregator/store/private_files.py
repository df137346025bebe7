"""The files of a database are private to its user: they hold stacks, file names, command lines.

Stage: store, in the process that writes a database. DuckDB makes the file, its log and its spill files with
the process's umask, and the log again after each checkpoint, so the umask is set while a database is open. An
existing database keeps its mode, which its owner may have chosen, and its log gets the same. The user's own
commands are started by a process that has no database open.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o600
_FOR_OTHERS: Final = 0o077

_lock = threading.Lock()
_held = 0
_before = 0


def hold(database_path: Path) -> None:
    """Sets the umask: new files become as private as the database, a new database its user's alone."""
    global _held, _before
    with _lock:
        _held += 1
        if _held == 1:
            _before = os.umask(_FOR_OTHERS & ~_mode(database_path))


def release() -> None:
    """Restores the umask once this was called for each :func:`hold`."""
    global _held
    with _lock:
        _held -= 1
        if _held == 0:
            os.umask(_before)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:  # it does not exist yet
        return 0
