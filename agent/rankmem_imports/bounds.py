"""Checks numbers from a file against the bounds of the database.

Stage: readers; the process of ``rankmem import``. In: a number; out: the number, or ValueError, which
readers turn into an error that names the file.
"""

from __future__ import annotations

from rankmem_protos.bounds import NUMBER_MAX, SIZE_BYTES_MAX


def checked_bytes(value: int) -> int:
    """A number of bytes; a change may be negative."""
    if not -SIZE_BYTES_MAX <= int(value) <= SIZE_BYTES_MAX:
        raise ValueError(f"{value} bytes are more than any device has")
    return int(value)


def checked_ns(value: int) -> int:
    """A time or duration in nanoseconds."""
    if not -NUMBER_MAX <= int(value) <= NUMBER_MAX:
        raise ValueError(f"{value} ns lies outside of what a clock shows")
    return int(value)
