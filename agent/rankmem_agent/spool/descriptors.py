"""Descriptors of ours, where no program has its input or output.

Stage: trainer and shipper. A daemon's standard input, output and errors may be closed. The next file that is
opened gets their numbers then, and what any library writes to stderr would go into it: into the strings of a
spool, say. ``above_the_standard_ones`` in ``tap/spool.cpp`` does the same. Standard library only.
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


@contextmanager
def above_the_standard_ones() -> Iterator[None]:
    """What is opened within is never 0, 1 or 2: for what opens descriptors of its own, as ``mmap`` does."""
    taken = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    try:
        while taken[-1] <= STANDARD_LAST:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
