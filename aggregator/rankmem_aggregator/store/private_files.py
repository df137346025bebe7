"""The files of a database are its user's alone: they hold stacks, file names, command lines.

Stage: store, in the process that writes a database. DuckDB makes the file, its log and what it spills with
the process's umask, the log anew after each checkpoint, so the umask holds while a database is open. A
database that is there keeps its mode, which its owner may have chosen, and its log gets the same. The user's
own commands are started by a process that writes none.
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
    """From now on what this process makes is as private as the database; a new one is its user's alone."""
    global _held, _before
    with _lock:
        _held += 1
        if _held == 1:
            _before = os.umask(_FOR_OTHERS & ~_mode(database_path))


def release() -> None:
    """The umask is as before, once for each :func:`hold` this was called."""
    global _held
    with _lock:
        _held -= 1
        if _held == 0:
            os.umask(_before)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:  # it is to be made
        return 0
