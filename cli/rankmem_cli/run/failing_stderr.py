"""Standard error that may fail: a pipe that nobody reads, a full disk, a terminal that is gone.

Stage: ``rankmem run``, around the whole of it. In: what it says. Out: the same on stderr and, once that
fails, nothing: neither the training nor its exit code depends on it. The training has its own descriptor.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


@contextlib.contextmanager
def stderr_may_fail() -> Iterator[None]:
    """Within it, nothing that is written to ``sys.stderr`` raises."""
    genuine = sys.stderr
    sys.stderr = cast("TextIO", _Stderr(genuine))
    try:
        yield
    finally:
        sys.stderr = genuine


class _Stderr:
    """Passes on what is written; after a failure it goes nowhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, and reports success."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            self._let_go()
            return len(text)

    def flush(self) -> None:
        """Flushes."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._let_go()

    def _let_go(self) -> None:
        # What is buffered has to go somewhere: else Python's last flush makes the exit code 120.
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.dup2(nothing, self._stream.fileno())
            finally:
                os.close(nothing)
