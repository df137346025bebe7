"""Keeps files from growing for a while, as a full file system does.

Stage: tests. Linux' limit on the size of files, of this process alone (Python ignores its signal). Nothing
else may be written meanwhile.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_grows(beyond_bytes: int = 1) -> Iterator[None]:
    """Within it a write behind so many bytes of any file fails: "File too large"."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (beyond_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
