"""A small file that is there whole or not at all, whatever dies or is full meanwhile.

Stage: trainer, shipper and ``rankmem run``. In: a path and the content. Out: the file, renamed
into place. Processes that write the same one hold a lock. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, durably: bool = False) -> None:
    """Puts a file of mode 0600 in the place of the one before.

    Args:
        durably: it outlives the host's sudden end, too; costs two syncs.

    Raises:
        OSError: it cannot be written; the one before is untouched.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            file.write(data)
            if durably:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durably:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
