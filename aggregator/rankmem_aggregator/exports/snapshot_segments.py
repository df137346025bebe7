"""Segments for a memory snapshot: those in the log, and covers for blocks that lie in none of them.

Stage: export. In: a device's segment events in order, and its allocs; out: the segments at the end, each
tiled with blocks. A recording that began late does not know the allocator's older segments, and a CPU has
none: blocks outside of all known segments are covered by ranges that stand from beginning to end, so that
viewers can place them. Pure functions over numbers; holds the live segments and the uncovered ranges.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

ROUNDED_TO_BYTES: Final = 512
"""CUDA's allocator hands out multiples of it (kMinBlockSize); the rounded size is not recorded."""
COVER_GAP_BYTES: Final = 2 << 20
"""Covered ranges that lie closer are merged: CUDA's smallest segment, and gaps of a heap on a CPU."""
SMALL_BYTES_MAX: Final = 2 << 20
"""A segment of the small pool has just this size (kSmallBuffer)."""
STAND_IN_ADDRESS: Final = 1 << 52
"""The first one for blocks without an address: above every device's, and exact in a viewer's doubles."""

_GAINS: Final = frozenset({"segment_alloc", "segment_map"})
_LOSES: Final = frozenset({"segment_free", "segment_unmap"})


class Segment(NamedTuple):
    """An address range that the allocator held."""

    address: int
    size_bytes: int
    stream: int
    pool: str | None
    is_expandable: bool = False
    is_cover: bool = False

    @property
    def end(self) -> int:
        """First address after it."""
        return self.address + self.size_bytes


@dataclass(slots=True)
class Tile:
    """A block of a segment, in use or not."""

    address: int
    size_bytes: int
    held: Mapping[str, Any] | None
    """The row of ``held.sql``; None where it is free."""


class Segments:
    """The live segments while a log is read forwards."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, Segment] = {}
        self._uncovered: list[tuple[int, int]] = []

    def apply(self, action: str, address: int, size_bytes: int, stream: int, pool: str | None) -> None:
        """Applies a segment event; ignores other actions."""
        if action in _GAINS:
            self._add(Segment(address, size_bytes, stream, pool, action == "segment_map"))
        elif action in _LOSES:
            self._take(address, size_bytes)

    def saw_block(self, address: int, size_bytes: int) -> None:
        """Notes a live block: where no segment holds it, nor several adjacent ones (expandable ones are
        mapped piecewise), it will be covered."""
        held_to = address
        for place in range(max(bisect_right(self._starts, address) - 1, 0), len(self._starts)):
            piece = self._by_start[self._starts[place]]
            if piece.address > held_to or piece.end < held_to:
                break
            held_to = piece.end
            if address + size_bytes <= held_to:
                return
        self._uncovered.append((address, address + max(size_bytes, 1)))
        if len(self._uncovered) > 100_000:
            self._uncovered = list(_merged(self._uncovered))

    def at_end(self) -> list[Segment]:
        """All segments by address, with covers where no known segment has those addresses."""
        known = [self._by_start[start] for start in self._starts]
        found = [*_joined(known), *_covers(_merged(self._uncovered), known)]
        return sorted(found)

    def _add(self, segment: Segment) -> None:
        if segment.address in self._by_start:
            self._take(segment.address, self._by_start[segment.address].size_bytes)
        insort(self._starts, segment.address)
        self._by_start[segment.address] = segment

    def _take(self, address: int, size_bytes: int) -> None:
        """Removes part of a segment (expandable ones go piecewise), or of several; ignores unknown ones."""
        end = address + size_bytes
        place = max(bisect_right(self._starts, address) - 1, 0)
        for start in self._starts[place:]:
            if start >= end:
                break
            old = self._by_start[start]
            if old.end <= address:
                continue
            self._starts.remove(start)
            del self._by_start[start]
            if old.address < address:
                self._add(old._replace(size_bytes=address - old.address))
            if end < old.end:
                self._add(old._replace(address=end, size_bytes=old.end - end))


class StandIns:
    """Addresses for the blocks of a device that were recorded without. That of a freed block is reused for
    the next one of its size, as by an allocator."""

    def __init__(self) -> None:
        self.num_blocks = 0
        """Blocks that needed one."""
        self._of_block: dict[int, int] = {}
        self._idle: dict[int, list[int]] = defaultdict(list)
        self._next = STAND_IN_ADDRESS

    def placed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a block, or of an event about one, with an address."""
        block, size_bytes = row["allocation_id"], row["size_bytes"]
        if row["address"] is not None or block is None:
            return dict(row)
        if block not in self._of_block:
            idle = self._idle[size_bytes]
            self._of_block[block] = idle.pop() if idle else self._next
            if self._of_block[block] == self._next:
                self._next += -(-max(size_bytes, 1) // ROUNDED_TO_BYTES) * ROUNDED_TO_BYTES
            self.num_blocks += 1
        return {**row, "address": self._of_block[block]}

    def after(self, row: Mapping[str, Any]) -> None:
        """Frees the address where the event ends its block."""
        if row["action"] == "free_completed" and row["allocation_id"] in self._of_block:
            self._idle[row["size_bytes"]].append(self._of_block.pop(row["allocation_id"]))


def tiles(segment: Segment, held: Iterable[Mapping[str, Any]]) -> Iterator[Tile]:
    """The segment from end to end as blocks in use and free ones.

    Args:
        segment: the segment.
        held: the live blocks that begin in it, by address; one that begins within another is left out.
    """
    at = segment.address
    rows = list(held)
    for number, row in enumerate(rows):
        address, size_bytes = row["address"], row["size_bytes"]
        if address < at or address + size_bytes > segment.end:
            continue
        after = rows[number + 1]["address"] if number + 1 < len(rows) else segment.end
        if address > at:
            yield Tile(at, address - at, None)
        rounded = -(-max(size_bytes, 1) // ROUNDED_TO_BYTES) * ROUNDED_TO_BYTES
        rounded = max(size_bytes, min(rounded, after - address, segment.end - address))
        yield Tile(address, rounded, row)
        at = address + rounded
    if at < segment.end:
        yield Tile(at, segment.end - at, None)


def _joined(segments: list[Segment]) -> Iterator[Segment]:
    """The segments, with the parts of an expandable one as one, as the allocator lists it. Of an older
    segment it is not recorded whether it is expandable."""
    last: Segment | None = None
    for segment in segments:
        if (
            last is not None
            and (last.is_expandable or segment.is_expandable)
            and (last.end, last.stream, last.pool) == (segment.address, segment.stream, segment.pool)
        ):
            size_bytes = last.size_bytes + segment.size_bytes
            last = last._replace(size_bytes=size_bytes, is_expandable=True)
            continue
        if last is not None:
            yield last
        last = segment
    if last is not None:
        yield last


def _merged(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges by address; those that touch or lie close are merged."""
    begin = end = None
    for first, after in sorted(ranges):
        if begin is None or end is None:
            begin, end = first, after
        elif first <= end + COVER_GAP_BYTES:
            end = max(end, after)
        else:
            yield begin, end
            begin, end = first, after
    if begin is not None and end is not None:
        yield begin, end


def _covers(ranges: Iterable[tuple[int, int]], known: list[Segment]) -> Iterator[Segment]:
    """Segments over the ranges, rounded outwards, without the addresses of known ones."""
    for first, after in ranges:
        at = first // ROUNDED_TO_BYTES * ROUNDED_TO_BYTES
        stop = -(-after // ROUNDED_TO_BYTES) * ROUNDED_TO_BYTES
        for segment in known:
            if segment.end <= at or segment.address >= stop:
                continue
            if segment.address > at:
                yield Segment(at, segment.address - at, 0, None, is_cover=True)
            at = max(at, segment.end)
        if at < stop:
            yield Segment(at, stop - at, 0, None, is_cover=True)
