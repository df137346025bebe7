"""Numbers the starts of a session's workers on this host: two launches in one job never share an attempt.

Stage: trainer, while the agent attaches. One ``rankmem run`` may run a script that prepares data and then a
torchrun, or two torchruns in a row: each counts its own restarts from 0, and rows of two processes
with one (attempt, rank) would be mixed up for good. Comes in: who launched this rank, and its restart
count. Goes out: the attempt. Standard library only; a lock on one small file, held for a read and a write.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final

FILE_NAME: Final = "launches.json"


def attempt_of(session_dir: Path, launch: str, restart: int) -> int:
    """The attempt of a rank: the launch's first attempt on this host, plus its restart count.

    The first launch of a session begins at 0, the next where the ones before it ended.

    Args:
        session_dir: the session's folder on this host; exists.
        launch: names the launcher's process for good; the same for all its ranks and restarts.
        restart: how often it has restarted its workers.

    Raises:
        OSError: the file cannot be opened or written.
    """
    file = os.open(session_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = _read(file)
        first, last = known.get(launch, (_next(known), -1))
        known[launch] = (first, max(last, first + restart))
        _write(file, known)
    finally:
        os.close(file)
    return first + restart


def _next(known: dict[str, tuple[int, int]]) -> int:
    return max((last for _, last in known.values()), default=-1) + 1


def _read(file: int) -> dict[str, tuple[int, int]]:
    text = os.pread(file, os.fstat(file).st_size, 0)
    try:
        return {launch: (int(first), int(last)) for launch, (first, last) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):  # empty, or cut short by a kill
        return {}


def _write(file: int, known: dict[str, tuple[int, int]]) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(known).encode(), 0)
