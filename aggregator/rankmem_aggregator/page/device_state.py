"""What an allocator held at an instant: segments, the blocks in them, and the holes between.

Stage: page, in the thread of a request. In: the rows of ``sql/page/device_state.sql``; out: the state right
after any event of their range, as arrays. A block takes its size rounded up as the allocator rounds it; what
is left of a segment is a hole. The figures are those of the view ``oom_overview``. Pure functions but for the
segments, which are replayed forwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.exports.snapshot_segments import Segment, Segments

Array = np.ndarray[Any, Any]

ROUNDED_TO_BYTES: Final = 512
"""Allocators of CUDA and its kin hand out multiples of it (kMinBlockSize)."""
NPU_EXTRA_BYTES: Final = 32
"""torch_npu adds it to a request before it rounds (NPUCachingAllocator, round_size)."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""A segment of the small pool has just this size (kSmallBuffer)."""
UNSPLIT_BYTES_MAX: Final = 1 << 20
"""Of the large pool the allocator does not split off a rest of at most this (kSmallSize): it stays with the
block before it. Expandable segments are split to the last 512 bytes."""
ALIVE: Final = np.iinfo(np.int64).max
"""In place of an event that never came."""
_OUTSIDE_MAX: Final = 100_000
"""Blocks outside of all known segments that are looked at for the ranges that cover them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Holes of a state, as arrays."""

    segment: Array
    """The segment each lies in."""
    offset: Array
    """From the segment's begin."""
    size_bytes: Array
    owner: Array
    """The block that a rest too small to be split off belongs to: its place among the state's; else -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A device right after an event."""

    segments: list[Segment]
    """By address; the last ``num_covers`` of them are ranges of blocks that lie in no known segment."""
    num_covers: int
    block: Array
    """The blocks alive, by address: places among all."""
    segment: Array
    """The segment of each."""
    offset: Array
    """From its segment's begin."""
    rounded_bytes: Array
    """What each takes of its segment."""
    pending: Array
    """Whether its tensor has been freed, but another stream may still use it."""
    holes: Hole

    @property
    def reserved_bytes(self) -> int:
        """Of all known segments."""
        return sum(each.size_bytes for each in self.segments if not each.is_cover)

    @property
    def unused_bytes(self) -> int:
        """In no block, rests too small to be split off included."""
        return int(self.holes.size_bytes.sum())

    @property
    def unsplit_bytes(self) -> int:
        """Of that, rests too small to be split off."""
        return int(self.holes.size_bytes[self.holes.owner >= 0].sum())

    @property
    def largest_hole_bytes(self) -> int:
        """The largest unused piece in a row."""
        return int(self.holes.size_bytes.max(initial=0))

    @property
    def fragmentation(self) -> float | None:
        """The part of the unused bytes outside of the largest piece; None where nothing is unused."""
        return 1 - self.largest_hole_bytes / self.unused_bytes if self.unused_bytes else None


class DeviceLog:
    """Segments and blocks of a device over a range of its log.

    Args:
        rows: those of ``device_state.sql``, in its order.
        device: its type and index.
    """

    def __init__(self, rows: pa.Table, device: str) -> None:
        is_move = pc.equal(rows["kind"], "segment")
        self._moves = (
            rows.filter(is_move)
            .select(["seq", "action", "address", "size_bytes", "stream", "pool"])
            .to_pylist()
        )
        with_address = rows.filter(pc.invert(is_move))
        unplaced = with_address.filter(with_address["address"].is_null())
        self.num_without_address = unplaced.num_rows
        self.bytes_without_address = int(_numbers(unplaced["size_bytes"]).sum())
        """Of all blocks of the rows: of one instant's those alive then."""
        placed = with_address.filter(with_address["address"].is_valid())
        self.blocks = placed.take(np.argsort(_numbers(placed["address"]), kind="stable"))
        """Those with an address, by that."""
        self._address = _numbers(self.blocks["address"])
        self._size = _numbers(self.blocks["size_bytes"])
        self._made = _numbers(self.blocks["seq"])
        self._freed = _numbers(self.blocks["freed_seq"], ALIVE)
        self._requested = _numbers(self.blocks["free_requested_seq"], ALIVE)
        extra = NPU_EXTRA_BYTES if device.startswith("npu") else 0
        step = 1 if device.startswith("cpu") else ROUNDED_TO_BYTES
        self._rounded = -(-(self._size + extra) // step) * step
        self._next_move = 0
        self._segments = Segments()
        self._at_end: list[Segment] | None = None

    @property
    def knows_segments(self) -> bool:
        """Whether any were recorded."""
        return bool(self._moves)

    def state_after(self, seq: int) -> State:
        """The state right after an event of the range; later calls must be for later events."""
        segments = self._segments_after(seq)
        alive = np.flatnonzero((self._made <= seq) & (self._freed > seq))
        owner = _segment_of(segments, self._address[alive])
        covers = self._covers(alive[owner < 0])
        if covers:
            segments = [*segments, *covers]
            outside = owner < 0
            owner[outside] = len(segments) - len(covers) + _segment_of(covers, self._address[alive[outside]])
            order = np.lexsort((self._address[alive], owner))
            alive, owner = alive[order], owner[order]
        base = np.array([each.address for each in segments], np.int64)
        offset = self._address[alive] - base[owner] if len(alive) else np.empty(0, np.int64)
        room = np.array([each.size_bytes for each in segments], np.int64)
        rounded = np.minimum(self._rounded[alive], room[owner] - offset) if len(alive) else offset
        return State(
            segments=segments,
            num_covers=len(covers),
            block=alive,
            segment=owner,
            offset=offset,
            rounded_bytes=rounded,
            pending=self._requested[alive] <= seq,
            holes=_holes(segments, len(segments) - len(covers), owner, offset, rounded),
        )

    def _segments_after(self, seq: int) -> list[Segment]:
        while self._next_move < len(self._moves) and self._moves[self._next_move]["seq"] <= seq:
            move = self._moves[self._next_move]
            if move["address"] is not None:
                self._segments.apply(
                    move["action"],
                    move["address"],
                    move["size_bytes"] or 0,
                    move["stream"] or 0,
                    move["pool"],
                )
            self._next_move += 1
            self._at_end = None
        if self._at_end is None:
            self._at_end = self._segments.at_end()
        return self._at_end

    def _covers(self, outside: Array) -> list[Segment]:
        """Ranges around blocks that lie in no known segment."""
        if not len(outside):
            return []
        covered = Segments()
        for block in outside[:_OUTSIDE_MAX].tolist():
            covered.saw_block(int(self._address[block]), int(self._rounded[block]))
        return covered.at_end()


def _segment_of(segments: list[Segment], addresses: Array) -> Array:
    """The segment that holds each address; -1: none."""
    begins = np.array([each.address for each in segments], np.int64)
    ends = np.array([each.end for each in segments], np.int64)
    place = np.searchsorted(begins, addresses, side="right") - 1
    if len(segments):
        place[(place >= 0) & (addresses >= ends[place])] = -1
    return place


def _holes(segments: list[Segment], num_known: int, owner: Array, offset: Array, rounded: Array) -> Hole:
    """What blocks, ordered by segment and offset, leave of known segments."""
    known = segments[:num_known]
    sizes = np.array([each.size_bytes for each in known], np.int64)
    before = np.cumsum(sizes) - sizes
    inside = np.flatnonzero(owner < num_known)
    # An empty block at each segment's begin, so that what is free begins at the end of a block everywhere.
    number = np.concatenate([np.arange(num_known), owner[inside]])
    block = np.concatenate([np.full(num_known, -1), inside])
    begin = np.concatenate([before, before[owner[inside]] + offset[inside]])
    end = np.concatenate([before, begin[num_known:] + rounded[inside]])
    order = np.lexsort((block, begin, number))
    number, block, begin, end = number[order], block[order], begin[order], end[order]
    reached = np.maximum.accumulate(end)
    size = np.append(begin[1:], int(sizes.sum()))[: len(begin)] - reached
    is_hole = size > 0
    number, block, size = number[is_hole], block[is_hole], size[is_hole]
    whole = np.array([not s.is_expandable and s.size_bytes != SMALL_SEGMENT_BYTES for s in known], bool)
    is_rest = (block >= 0) & (size <= UNSPLIT_BYTES_MAX)
    is_rest[is_rest] = whole[number[is_rest]]
    return Hole(
        segment=number,
        offset=reached[is_hole] - before[number],
        size_bytes=size,
        owner=np.where(is_rest, block, -1),
    )


def _numbers(column: pa.ChunkedArray, absent: int = 0) -> Array:
    found: Array = column.fill_null(absent).to_numpy()
    return found.astype(np.int64)
