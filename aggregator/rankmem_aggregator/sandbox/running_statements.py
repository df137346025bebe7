"""The statements that are running, recorded where they can be read after their process has died.

Stage: query, between an aggregator and its parent. In: SQL and parameters; out: a fingerprint in memory
that both share, while the statement runs. The layout: :data:`DIGEST_BYTES` for each slot, zeros where none
runs. Writing it takes no system call, so nothing is lost with a killed process.
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

from rankmem_protos.errors import Code, RankmemError

DIGEST_BYTES: Final = 32
_NONE: Final = bytes(DIGEST_BYTES)


def fingerprint(sql: str, parameters: Mapping[str, object]) -> str:
    """Identifies a statement: its words and its parameters, white space and case left out."""
    words = [
        " ".join(sql.split()).casefold(),
        sorted((name, repr(value)) for name, value in parameters.items()),
    ]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


class RunningStatements:
    """Slots for the statements that run at once.

    Args:
        descriptor: of the shared memory, see :func:`shared_memory`.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self._lock = threading.Lock()
        self._ended: list[int] = []
        self._free = list(range(len(self._memory) // DIGEST_BYTES))

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Within it the statement of this fingerprint is recorded as running. Any thread.

        One that ends at a limit stays until :meth:`forget_ended`: what it took may still be missing.
        """
        place = self._place()
        keeps = False
        try:
            self._write(place, bytes.fromhex(name))
            yield
        except RankmemError as exc:
            keeps = exc.code is Code.EXHAUSTED
            raise
        finally:
            if place is not None:
                self._leave(place, keeps=keeps)

    def forget_ended(self) -> None:
        """Erases those that have ended."""
        with self._lock:
            ended, self._ended = self._ended, []
            for place in ended:
                self._write(place, _NONE)
            self._free += ended

    def _place(self) -> int | None:
        with self._lock:
            if self._free:
                return self._free.pop()
            return self._ended.pop(0) if self._ended else None

    def _leave(self, place: int, *, keeps: bool) -> None:
        with self._lock:
            if keeps:
                self._ended.append(place)
            else:
                self._write(place, _NONE)
                self._free.append(place)

    def _write(self, place: int | None, digest: bytes) -> None:
        if place is not None:
            self._memory[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES] = digest


def shared_memory(num_places: int) -> int:
    """A descriptor of memory for so many statements at once; the caller closes it."""
    descriptor = os.memfd_create("rankmem-running-statements")
    os.ftruncate(descriptor, num_places * DIGEST_BYTES)
    return descriptor


def take(descriptor: int) -> list[str]:
    """The recorded fingerprints, each once; erases them."""
    size_bytes = os.fstat(descriptor).st_size
    data = os.pread(descriptor, size_bytes, 0)
    os.pwrite(descriptor, bytes(size_bytes), 0)
    digests = {data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)}
    return sorted(digest.hex() for digest in digests - {_NONE})
