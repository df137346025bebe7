"""Room for a database to grow: how much there is, and which errors mean that there was none.

Stage: store. In: the path of the database; out: a :class:`DiskLowError` before a commit that the disk might
not hold. Free space is checked before each commit, but another program may take it meanwhile, and a quota or
a network disk may not show in it. So after a file could not be written, the room is reserved as a test before
anything is tried again.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Final

DISK_SLACK_BYTES: Final = 16 << 20
"""Room for a checkpoint's own blocks beside the rows."""
_FILE_FAILED: Final = (
    "could not write",
    "could not truncate",
    "could not fsync",
    "fsync failed",
    "no space left on device",
    "file too large",
    "disk quota exceeded",
)
"""In messages of DuckDB 2.0 about a file that it could not write. At a COMMIT it is an error of the
transaction, at a checkpoint an error of the database, which is invalidated."""
_UNSYNCED: Final = "fsync"


class DiskLowError(Exception):
    """A commit was not begun: the disk might not hold it and the checkpoint after it."""


def could_not_write(exc: BaseException) -> bool:
    """Whether the error means that a file could not be written: a full disk, a quota, a limit, a bad disk."""
    text = str(exc).lower()
    return any(words in text for words in _FILE_FAILED)


def could_not_sync(exc: BaseException) -> bool:
    """Whether written data may never reach the disk, although it can be read (Linux reports it once)."""
    return _UNSYNCED in str(exc).lower()


class Disk:
    """The disk of one database. Any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.has_failed = False
        """A file could not be written, and none has been since."""

    def free_bytes(self) -> int:
        """Free on the file system, for this user."""
        return shutil.disk_usage(self._path.parent).free

    def file_bytes(self) -> int:
        """Size of the file, without its log."""
        return self._path.stat().st_size

    def log_bytes(self) -> int:
        """Size of the write-ahead log."""
        log = self._path.with_name(self._path.name + ".wal")
        try:
            return log.stat().st_size
        except FileNotFoundError:  # a checkpoint has just removed it
            return 0

    def check_room(self, size_bytes: int = 0) -> None:
        """Checks that so many bytes of rows could be stored now.

        A checkpoint that meets a full disk invalidates the instance (seen: DuckDB 2.0).

        Raises:
            DiskLowError: they could not.
        """
        log_bytes = self.log_bytes()
        # The log grows by the rows at most; a checkpoint packs log and rows to less than half.
        to_pack = (log_bytes + size_bytes) // 2 + DISK_SLACK_BYTES
        needed = size_bytes + to_pack
        free_bytes = self.free_bytes()
        if free_bytes < needed:
            raise DiskLowError(f"{free_bytes} bytes are free beside {self._path}, a commit may need {needed}")
        self._check_limit(log_bytes + size_bytes, to_pack)
        if self.has_failed:
            self._reserve(needed)

    def _check_limit(self, log_bytes: int, to_pack: int) -> None:
        """Checks the limit on the size of files that a shell or a container may set."""
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit == resource.RLIM_INFINITY:
            return
        needed = max(log_bytes, self.file_bytes() + to_pack)
        if limit < needed:
            raise DiskLowError(
                f"files of this process may have {limit} bytes (ulimit -f), {self._path} may need {needed}"
            )

    def _reserve(self, needed: int) -> None:
        try:
            with tempfile.TemporaryFile(dir=self._path.parent) as file:
                os.posix_fallocate(file.fileno(), 0, needed)
        except OSError as exc:
            raise DiskLowError(
                f"{needed} bytes for a commit cannot be reserved beside {self._path}: {exc.strerror}"
            ) from exc
