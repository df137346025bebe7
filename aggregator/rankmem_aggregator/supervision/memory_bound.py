"""The hard bound on an aggregator's memory: RLIMIT_DATA, which the kernel enforces for this process alone.

Stage: wiring, at the start of an aggregator's process, and once a second. In: bytes; out: an allocation
that would exceed it fails, in any statement or library. DuckDB turns that into an error of the statement;
where another library ends the process instead, the parent restarts it (``supervisor``).

The kernel counts what is reserved for writing, touched or not, so the stacks of threads count whole (as a
rule 8 MiB each, of which some 100 KiB are touched): the limit follows their number. Not counted are code,
files and shared memory, some 200 MiB.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankmem_aggregator.supervision.parent_pipe import NO_MEMORY

logger = logging.getLogger(__name__)

STACK_BYTES: Final = 8 << 20
"""Of a thread where neither the C library nor the shell says how large a stack is."""
_ATTRIBUTES_BYTES: Final = 256
"""More than a pthread_attr_t has anywhere (glibc: 56, on aarch64 64)."""
ROOM_BYTES: Final = 64 << 20
"""Below the bound: stacks of eight threads. Without it no call can begin, and gRPC's threads may be lost."""
LOOKS_MAX: Final = 3
"""Without room, a second apart, before the process ends. The C library keeps for later what a statement gave
back: without a new process the room may never come."""
_TASKS: Final = Path("/proc/self/task")


class MemoryBound:
    """The bound of this process, set when this is made.

    Args:
        bound_bytes: what it may hold, besides the stacks of its threads.
    """

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._looks = 0  # in a row that found no room
        soft, self._hard = resource.getrlimit(resource.RLIMIT_DATA)
        self._most = [limit for limit in (soft, self._hard) if limit != resource.RLIM_INFINITY]
        self._stack_bytes = _stack_bytes()
        self.follow_threads()

    def follow_threads(self) -> None:
        """Sets the limit for the threads that there are: a new one's stack is of the bound until this is
        called again. Any thread; 0.1 ms, 1 ms with a thousand threads."""
        num_threads = sum(1 for _ in _TASKS.iterdir())
        wanted = self._bound_bytes + num_threads * self._stack_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *self._most]), self._hard))

    def look(self, relieve: Callable[[], None]) -> bool:
        """Whether there is room for the next statement; ends the process where there is none for long.

        Args:
            relieve: called where there is none, to stop statements.
        """
        self.follow_threads()
        if _has_room():
            self._looks = 0
            return True
        self._looks += 1
        if self._looks >= LOOKS_MAX:
            logger.error("no memory is left below the bound of %d bytes, the process ends", self._bound_bytes)
            os._exit(NO_MEMORY)
        relieve()
        return False


def _stack_bytes() -> int:
    """Of a thread that is started without a size: the shell's limit, which the C library looked at when the
    process began; 2 MiB where there is none (``ulimit -s unlimited``, glibc)."""
    attributes, size = ctypes.create_string_buffer(_ATTRIBUTES_BYTES), ctypes.c_size_t()
    library = ctypes.CDLL(None)
    try:
        failed = library.pthread_getattr_default_np(attributes)
        failed = failed or library.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    except AttributeError:  # another C library
        failed = True
    if not failed and size.value:
        return size.value
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return STACK_BYTES if stack == resource.RLIM_INFINITY else stack


def _has_room() -> bool:
    try:
        mmap.mmap(-1, ROOM_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True
