"""Our own file descriptors, kept clear of standard input, output and error.

Stage: trainer and shipper. A daemon's standard input, output and errors may be closed. The next file that is
opened gets their numbers then, and what any library writes to stderr would go into it: into the strings of a
spool, say. ``open_own`` in ``tap/spool.cpp`` does more. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

STANDARD_LAST: Final = 2


def open_above(path: Path, flags: int, mode: int = 0o600) -> int:
    """As ``os.open``, closed on exec; never 0, 1 or 2."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    if descriptor > STANDARD_LAST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, STANDARD_LAST + 1)
    finally:
        os.close(descriptor)


class OwnFile:
    """A descriptor of ours, and which file it is; as ``OwnFile`` in ``tap/spool.h``.

    A program that closes all that are open (a daemon's start does) gives our number to a file of its own:
    nothing of ours may be written there, and nothing of its closed.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._found = os.fstat(descriptor)

    @property
    def is_there(self) -> bool:
        """Whether the number is still our file's."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self._found)
        except OSError:
            return False

    def write_at(self, data: bytes, offset: int) -> bool:
        """Whether all of it was written there."""
        try:
            return self.is_there and os.pwrite(self.descriptor, data, offset) == len(data)
        except OSError:
            return False

    def close(self) -> None:
        """Closes it, where it is ours."""
        if self.is_there:
            os.close(self.descriptor)


@contextmanager
def above_the_standard_ones() -> Iterator[None]:
    """Descriptors opened within are never 0, 1 or 2: for calls that open their own, as ``mmap`` does."""
    taken = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    try:
        while taken[-1] <= STANDARD_LAST:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
