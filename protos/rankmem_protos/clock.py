"""The meaning of a time: an instant on a wall clock, or a position in a recording without times.

Stage: the contract between storing and showing times. Imports nothing. ``utc_of`` and
``rank_span.has_clock`` are the same rule in SQL.
"""

from __future__ import annotations

from typing import Final

CLOCK_NS_MIN: Final = 946_684_800 * 10**9
"""The year 2000. An earlier time is no wall clock's: events of a recording without times count from 0."""


def has_clock(time_ns: int) -> bool:
    """Whether the time is an instant that can be compared with those of other ranks."""
    return time_ns >= CLOCK_NS_MIN


def distance_ns(time_ns: int | None, start_ns: int | None) -> int | None:
    """The time from a start to an instant; None where either is unknown, or they are not on one clock."""
    if time_ns is None or start_ns is None or has_clock(time_ns) is not has_clock(start_ns):
        return None
    return time_ns - start_ns
