"""Finds the ranges around each launch: one pass over both in order of time, thread by thread.

Stage: readers, for nvprof and Nsight Systems; the process of ``rankmem import``. In: launches and ranges,
both by thread and start; out: for each launch the ranges of its thread that begin before and end after it,
outermost first. Holds the open ranges of one thread. Ranges may overlap without nesting (nvtxRangeStart).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Range(NamedTuple):
    """A range of a thread."""

    thread: int
    started_ns: int
    ended_ns: int
    number: int
    """Its place in the recording."""
    depth: int = 0
    """How many ranges of its thread were open when it began."""


class Launch(NamedTuple):
    """A kernel's launch on a thread."""

    thread: int
    started_ns: int
    ended_ns: int
    kernel: int
    """The kernel's place in the recording."""


def enclosing(launches: Iterable[Launch], ranges: Iterable[Range]) -> Iterator[tuple[Launch, list[Range]]]:
    """Each launch with the ranges around it, outermost (first begun) first.

    Args:
        launches: ordered by (thread, started_ns).
        ranges: ordered by (thread, started_ns), then as the recording has them.
    """
    waiting = iter(ranges)
    ahead = next(waiting, None)
    open_ranges: list[Range] = []
    for launch in launches:
        while ahead is not None and (ahead.thread, ahead.started_ns) < (launch.thread, launch.started_ns):
            open_ranges.append(ahead)
            ahead = next(waiting, None)
        open_ranges = [
            r for r in open_ranges if r.thread == launch.thread and r.ended_ns >= launch.started_ns
        ]
        yield launch, [r for r in open_ranges if r.ended_ns > launch.ended_ns]
    for _ in waiting:  # the iterator may collect the ranges as they pass
        pass


def with_depth(ranges: Iterable[Range]) -> Iterator[Range]:
    """The same ranges with their depth; ordered by (thread, started_ns)."""
    ends: list[int] = []
    thread: int | None = None
    for one in ranges:
        if one.thread != thread:
            ends, thread = [], one.thread
        while ends and ends[0] <= one.started_ns:
            heapq.heappop(ends)
        yield one._replace(depth=len(ends))
        heapq.heappush(ends, one.ended_ns)
