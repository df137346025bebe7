"""Which statements are under way, where it can be read after the death of the process that runs them.

Stage: query, between an aggregator and its parent. In: SQL and parameters; out: a fingerprint in memory
that both share, while the statement runs. The layout: :data:`DIGEST_BYTES` for each of so many places,
zeros where none runs. Writing it is no system call, so nothing of it is lost with a process that is killed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

DIGEST_BYTES: Final = 32
_NONE: Final = bytes(DIGEST_BYTES)


def fingerprint(sql: str, parameters: Mapping[str, object]) -> str:
    """What a statement is known by: its words and its parameters, white space and case left out."""
    words = [
        " ".join(sql.split()).casefold(),
        sorted((name, repr(value)) for name, value in parameters.items()),
    ]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


class UnderWay:
    """Places for the statements that run at once.

    Args:
        descriptor: of the shared memory, see :func:`shared_memory`.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self._lock = threading.Lock()
        self._free = list(range(len(self._memory) // DIGEST_BYTES))

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Within it the statement of this fingerprint is under way. Any thread."""
        with self._lock:
            place = self._free.pop() if self._free else None
        try:
            self._write(place, bytes.fromhex(name))
            yield
        finally:
            self._write(place, _NONE)
            if place is not None:
                with self._lock:
                    self._free.append(place)

    def _write(self, place: int | None, digest: bytes) -> None:
        if place is not None:
            self._memory[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES] = digest


def shared_memory(num_places: int) -> int:
    """A descriptor of memory for so many statements at once; the caller closes it."""
    descriptor = os.memfd_create("rankmem-under-way")
    os.ftruncate(descriptor, num_places * DIGEST_BYTES)
    return descriptor


def take(descriptor: int) -> list[str]:
    """The fingerprints that stand there, each once; none stand there afterwards."""
    size_bytes = os.fstat(descriptor).st_size
    data = os.pread(descriptor, size_bytes, 0)
    os.pwrite(descriptor, bytes(size_bytes), 0)
    digests = {data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)}
    return sorted(digest.hex() for digest in digests - {_NONE})
