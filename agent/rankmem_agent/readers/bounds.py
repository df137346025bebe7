"""What no recording can say: sizes beyond any device, times beyond any clock.

Stage: readers; the process of ``rankmem import``. In: a number out of a file; out: the number, or ValueError,
which readers turn into an error that names the file.
"""

from __future__ import annotations

from typing import Final

BYTES_MAX: Final = 2**56
"""64 PiB: no device has it, and the aggregator refuses it."""
TIME_NS_MAX: Final = 2**62
"""The year 2116: a later time is a corrupt number."""


def checked_bytes(value: int) -> int:
    """A number of bytes, which may be negative where it is a change."""
    if not -BYTES_MAX < int(value) < BYTES_MAX:
        raise ValueError(f"{value} bytes are more than any device has")
    return int(value)


def checked_ns(value: int) -> int:
    """A time or duration in nanoseconds."""
    if not -TIME_NS_MAX < int(value) < TIME_NS_MAX:
        raise ValueError(f"{value} ns lies outside of what a clock shows")
    return int(value)
