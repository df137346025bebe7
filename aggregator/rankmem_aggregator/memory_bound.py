"""The hard bound on an aggregator's memory: RLIMIT_DATA, which the kernel holds for this process alone.

Stage: wiring, at the start of an aggregator's process, and once a second. In: bytes; out: an allocation
that would go beyond fails, in whatever statement or library it is. DuckDB makes an error of the statement
of it; where another library ends the process instead, the parent starts it again (``supervisor``).

The kernel counts what is reserved for writing, touched or not, so the stacks of threads count whole (8 MiB
each, of which some 100 KiB are touched): the limit follows their number. Not counted are code, files and
shared memory, some 200 MiB.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

STACK_BYTES: Final = 8 << 20
"""Of a thread where the shell sets no limit on stacks."""
_TASKS: Final = Path("/proc/self/task")


class MemoryBound:
    """The bound of this process, from its making on.

    Args:
        bound_bytes: what it may hold, besides the stacks of its threads.
    """

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        soft, self._hard = resource.getrlimit(resource.RLIMIT_DATA)
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
        self._most = [limit for limit in (soft, self._hard) if limit != resource.RLIM_INFINITY]
        self._stack_bytes = STACK_BYTES if stack == resource.RLIM_INFINITY else stack
        self.follow_threads()

    def follow_threads(self) -> None:
        """Sets the limit for the threads that there are: a new one's stack is of the bound until this is
        called again. Any thread; 0.1 ms, 1 ms with a thousand threads."""
        num_threads = sum(1 for _ in _TASKS.iterdir())
        wanted = self._bound_bytes + num_threads * self._stack_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *self._most]), self._hard))
