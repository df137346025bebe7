"""The private pools of a trace's events, which PyTorch's entries do not tell, from the segments at its end.

Stage: trainer, and importers. Pure, standard library only. See :mod:`rankmem_agent.tap.snapshot_format`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from rankmem_agent.spool.layout import Action

GAINS: Final = frozenset({Action.SEGMENT_ALLOC, Action.SEGMENT_MAP})
LOSES: Final = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})


def private_pools(
    events: Iterable[tuple[int, int, int]], segments: Iterable[tuple[int, int, int]]
) -> dict[int, int]:
    """The private pools in which events of a trace lie: by the event's place, packed.

    Args:
        events: action, address and bytes of each.
        segments: address, bytes and pool of those at the end of the trace; pool 0 is the default one.
    """
    ranges = _Ranges(segments)
    found: dict[int, int] = {}
    for place, (action, address, size_bytes) in reversed(list(enumerate(events))) if ranges else ():
        pool = ranges.pool_at(address)
        if pool:
            found[place] = pool
        if action in GAINS or action in LOSES:  # before it, something else may have been there
            ranges.cut(address, address + size_bytes)
    return found


class _Ranges:
    """Addresses of private pools, as a trace is walked backwards from its end."""

    def __init__(self, segments: Iterable[tuple[int, int, int]]) -> None:
        self._ranges = sorted((begin, begin + size, pool) for begin, size, pool in segments if pool)
        self._begins = [begin for begin, _, _ in self._ranges]

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def pool_at(self, address: int) -> int:
        """The pool of the range in which an address lies; 0 where it lies in none."""
        at = bisect_right(self._begins, address) - 1
        return self._ranges[at][2] if at >= 0 and address < self._ranges[at][1] else 0

    def cut(self, begin: int, end: int) -> None:
        """Takes a range out."""
        first = max(bisect_right(self._begins, begin) - 1, 0)
        last, kept = first, []
        while last < len(self._ranges) and self._begins[last] < end:
            low, high, pool = self._ranges[last]
            parts = (low, min(high, begin), pool), (max(low, end), high, pool)
            kept += [part for part in parts if part[0] < part[1]]
            last += 1
        self._ranges[first:last] = kept
        self._begins[first:last] = [low for low, _, _ in kept]
