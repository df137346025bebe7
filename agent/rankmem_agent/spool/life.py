"""Whether the writer of a spool lives: its process holds a lock on the control page for as long as it does.

Stage: spool, both sides. The writer holds it (the tap in ``tap/spool.cpp``; :func:`hold` for the writer in
Python). Shipper, ``rankmem run``, ``rankmem ship`` and the other ranks ask. Standard library only.

A process id means nothing across PID namespaces: containers of one host that share ``/dev/shm``
(``--ipc=host``) each count their own, and a rank of one looks dead, or like somebody else, in the other's
``/proc``. A lock is the same for all who can open the file.

It is a ``flock``: it belongs to the open file and ends with the last descriptor of it. So it ends with the
process in whatever way (exit, ``os._exit``, SIGKILL), and at an exec, since the descriptor is close-on-exec.
A forked child inherits the descriptor and closes it at once (``pthread_atfork``, ``os.register_at_fork``): a
DataLoader's worker that outlives its rank does not keep it alive.

The control page names the locked file (``lock_device``, ``lock_inode``). Zeros: there is no lock, because an
older rankmem wrote the spool, or locks do not hold on its file system. Another file: this is a copy. Then the
lock proves nothing, and the process id decides. A reader looks at the process id too where the lock is free:
a process that has gone on as another program has let go of it, and still reports how it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
from pathlib import Path
from typing import Final

from rankmem_agent.spool import layout
from rankmem_agent.spool.descriptors import open_above

_CONTROL_OFFSET: Final = {field.name: field.offset for field in layout.CONTROL_FIELDS}
_LOCKED_FILE: Final = struct.Struct("<QQ")  # lock_device, lock_inode


def hold(control: Path) -> tuple[int, int, int] | None:
    """Locks a control page for this process; None where locks do not hold.

    Returns:
        The descriptor, to be closed in a forked child and nowhere else, and what the control page is to
        record: the file's device and inode.
    """
    try:
        descriptor = open_above(control, os.O_RDONLY)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_locked(control):  # asked as others will ask
            found = os.fstat(descriptor)
            return descriptor, found.st_dev, found.st_ino
    os.close(descriptor)
    return None


def is_held(spool_dir: Path) -> bool | None:
    """Whether the writer of the spool in this folder holds its lock; None where there is no lock to ask.

    Where it cannot be asked now (too many open files) it counts as held: who is taken for dead is cut off.
    """
    try:
        descriptor = os.open(spool_dir / "control", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return True
    try:
        found = os.fstat(descriptor)
        locked = os.pread(descriptor, _LOCKED_FILE.size, _CONTROL_OFFSET["lock_device"])
        own = _LOCKED_FILE.pack(found.st_dev, found.st_ino)
        return _refuses(descriptor) if locked == own else None
    except OSError:
        return True
    finally:
        os.close(descriptor)


def process_of(spool_dir: Path) -> str:
    """The process that writes here, named as :func:`rankmem_agent.spool.launches.process` does, by
    ``meta.json`` or ``candidate.json``; empty: not known."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return "-".join(
            str(json.loads((spool_dir / layout.META_NAME).read_text("utf-8"))["spool_id"]).split("-")[3:5]
        )
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((spool_dir / layout.CANDIDATE_NAME).read_text("utf-8"))["process"])
    return ""


def lives_in(session_dir: Path, process: str) -> bool:
    """Whether a process of that name holds the lock of a folder of the session, from wherever it is seen."""
    pid = process.partition("-")[0]
    with contextlib.suppress(OSError), os.scandir(session_dir) as entries:
        named = [Path(entry.path) for entry in entries if pid in entry.name.split("-")[1:]]
        return any(is_held(folder) and process_of(folder) == process for folder in named)
    return False


def _is_locked(control: Path) -> bool:
    descriptor = os.open(control, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _refuses(descriptor)
    finally:
        os.close(descriptor)


def _refuses(descriptor: int) -> bool:
    """Whether another holds the file for itself. Those who ask share it for a moment, and refuse no one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
