"""What no recording can say: sizes beyond any device, times beyond any clock. As the aggregator's own
bounds (``row_checks``; a test holds the two together): what passes here is not refused there.

Stage: readers; the process of ``rankmem import``, and the trainer (a snapshot that drains). In: a number out
of a file; out: the number, or ValueError, which readers turn into an error that names the file.
"""

from __future__ import annotations

from typing import Final

SIZE_BYTES_MAX: Final = 2**50
"""Of a block, a segment or a total: 1 PiB, no host has it; larger is a corrupt number."""
NUMBER_MAX: Final = 2**62
"""Of a time in ns, an id, or the bytes that a request which failed asked for; either side of 0, so that sums
fit 64 bits. As a time it is the year 2116."""


def checked_bytes(value: int) -> int:
    """A number of bytes, which may be negative where it is a change."""
    if not -SIZE_BYTES_MAX <= int(value) <= SIZE_BYTES_MAX:
        raise ValueError(f"{value} bytes are more than any device has")
    return int(value)


def checked_ns(value: int) -> int:
    """A time or duration in nanoseconds."""
    if not -NUMBER_MAX <= int(value) <= NUMBER_MAX:
        raise ValueError(f"{value} ns lies outside of what a clock shows")
    return int(value)
