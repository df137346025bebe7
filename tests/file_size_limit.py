"""A file system on which no file grows, for a moment: how DuckDB meets one that is full.

Stage: tests. Linux' limit on the size of files, of this process alone (Python ignores its signal). Nothing
else may be written meanwhile.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_grows() -> Iterator[None]:
    """Within it a write behind the first byte of any file fails: "File too large"."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
