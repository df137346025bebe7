"""The allocator as it was when a recording began: its segments, and the blocks in them.

Stage: insights. In: a :class:`~rankmem_aggregator.insights.lives.Trace`. Out: an allocator in that state. The
size of an older block is recorded where it was still alive when the snapshot was taken (block_bytes); that of
others follows from their request and from what lies behind them:

- Free blocks of the large pool are always larger than 1 MiB, so a smaller gap is a rest that was not split
  off and belongs to the block before it.
- Of a larger gap, the first block that the recording places in it lies at the begin of the free part: what is
  before it belongs to the older block.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_aggregator.insights.allocator import Allocator
from rankmem_aggregator.insights.blocks import FREE, IN_USE, UNMAPPED, Block, Pool
from rankmem_aggregator.insights.lives import GAINS, Array, Op, Trace, block_bytes_of
from rankmem_aggregator.insights.settings import SMALL_BYTES_MAX, SMALL_SEGMENT_BYTES

RANGES_APART_BYTES: Final = 8 << 30
"""Pages of expandable segments that lie further apart are of two, or half the device: each has 9/8 of that as
addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderBlock:
    """A block older than the recording."""

    number: int
    address: int
    size_bytes: int


def older_blocks(trace: Trace) -> list[OlderBlock]:
    """The older blocks by address, with the allocator's sizes."""
    _, rounded = block_bytes_of(trace, trace.settings)
    order = sorted(range(trace.num_older), key=trace.older_address.__getitem__)
    segments = sorted(trace.segments, key=lambda each: each.address)
    begins = [each.address for each in segments]
    first_in = None if trace.settings.expandable_segments else _FirstIn(trace)
    found = []
    for place, number in enumerate(order):
        address, size = trace.older_address[number], trace.older_block_bytes[number]
        at = bisect_left(begins, address + 1) - 1
        whole = segments[at].size_bytes if at >= 0 else SMALL_SEGMENT_BYTES
        end = segments[at].address + whole if at >= 0 else address + (size or rounded[number])
        if place + 1 < len(order):
            end = min(end, trace.older_address[order[place + 1]])
        if size == 0:
            size = rounded[number]
            if first_in is not None and whole != SMALL_SEGMENT_BYTES:
                size += first_in.rest(number, address + size, end)
        size = min(size, end - address)  # a recording may contradict itself
        if size > 0:
            found.append(OlderBlock(number=number, address=address, size_bytes=size))
    return found


class _FirstIn:
    """Finds the first block that a recording places in a range of addresses."""

    def __init__(self, trace: Trace) -> None:
        at = np.flatnonzero(np.array(trace.ops) == Op.ALLOC)
        addresses = np.array(trace.address, np.int64)[at]
        order = np.argsort(addresses, kind="stable")
        self._addresses: Array = addresses[order]
        self._ops: Array = at[order]
        self._freed = {
            block: place
            for place, (op, block) in enumerate(zip(trace.ops, trace.block, strict=True))
            if op == Op.FREE and block < trace.num_older
        }

    def rest(self, number: int, begin: int, end: int) -> int:
        """Bytes between an older block's rounded end and the next block that belong to it."""
        if end - begin <= SMALL_BYTES_MAX:
            return max(end - begin, 0)
        first, last = np.searchsorted(self._addresses, [begin, end])
        if first == last:
            return 0
        earliest = first + int(np.argmin(self._ops[first:last]))
        rest = int(self._addresses[earliest]) - begin
        is_alive = self._ops[earliest] < self._freed.get(number, len(self._ops) << 40)
        return rest if is_alive and rest <= SMALL_BYTES_MAX else 0


def restore(allocator: Allocator, trace: Trace) -> None:
    """Puts a new allocator, of the recording's own settings, into the state at the recording's begin."""
    blocks = older_blocks(trace)
    if trace.settings.expandable_segments:
        _restore_ranges(allocator, trace, blocks)
        return
    starts = [block.address for block in blocks]
    for segment in trace.segments:
        private, stream = trace.groups[segment.group]
        pool = allocator.pool(private, segment.size_bytes == SMALL_SEGMENT_BYTES, stream)
        end = segment.address + segment.size_bytes
        within = blocks[bisect_left(starts, segment.address) : bisect_left(starts, end)]
        chain = _chain(pool, 0, segment.address, end, within, FREE)
        _enter(allocator, chain)
        allocator.device.moved("segment_alloc", segment.address, segment.size_bytes)


def _restore_ranges(allocator: Allocator, trace: Trace, blocks: list[OlderBlock]) -> None:
    """The same for expandable segments, whose older parts are recorded as segments."""
    starts = [block.address for block in blocks]
    for pages in _ranges(trace):
        group = pages[0].group
        private, stream = trace.groups[group]
        begin, upto = pages[0].address, max(page.address + page.size_bytes for page in pages)
        within = blocks[bisect_left(starts, begin) : bisect_left(starts, upto)]
        pool = allocator.pool(private, _is_small(pages, within), stream)
        room = -(-trace.settings.device_bytes * 9 // 8 // pool.page) * pool.page
        chain: list[tuple[Block, int]] = []
        at = begin
        for page in sorted((page for page in pages if page.is_older), key=lambda page: page.address):
            chain += _chain(pool, begin, at, page.address, (), UNMAPPED)
            at = page.address + page.size_bytes
            inside = blocks[bisect_left(starts, page.address) : bisect_left(starts, at)]
            chain += _chain(pool, begin, page.address, at, inside, FREE)
            allocator.device.moved("segment_map", page.address, page.size_bytes)
        chain += _chain(pool, begin, at, max(begin + room, upto), (), UNMAPPED)
        _enter(allocator, chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pages:
    """Pages of an expandable segment: mapped when the recording began, or later."""

    address: int
    size_bytes: int
    group: int
    is_older: bool


def _ranges(trace: Trace) -> Iterable[list[_Pages]]:
    """The pages of expandable segments that were there when the recording began, those of one together."""
    found = [
        _Pages(address=each.address, size_bytes=each.size_bytes, group=each.group, is_older=True)
        for each in trace.segments
    ]
    for op, moves in trace.moves.items():
        found += [
            _Pages(address=address, size_bytes=size, group=trace.group[op], is_older=False)
            for action, address, size in moves
            if action in GAINS
        ]
    found.sort(key=lambda pages: (pages.group, pages.address))
    apart = min(RANGES_APART_BYTES, trace.settings.device_bytes // 2)
    ranges: list[list[_Pages]] = []
    for pages in found:
        last = ranges[-1][-1] if ranges else None
        if last is not None and last.group == pages.group and pages.address - last.address < apart:
            ranges[-1].append(pages)
        else:
            ranges.append([pages])
    return [pages for pages in ranges if any(each.is_older for each in pages)]


def _is_small(pages: list[_Pages], blocks: list[OlderBlock]) -> bool:
    """Whether it is of the small pool: it maps pages of 2 MiB, or holds no block above 1 MiB."""
    mapped = [page.size_bytes for page in pages if not page.is_older]
    if mapped:
        return min(mapped) == SMALL_SEGMENT_BYTES
    return all(block.size_bytes <= SMALL_BYTES_MAX for block in blocks)


def _chain(
    pool: Pool, segment: int, begin: int, end: int, blocks: Iterable[OlderBlock], rest: int
) -> list[tuple[Block, int]]:
    """Blocks that fill a range, each with its number (-1: none): those in use, and between them ``rest``."""
    chain, at = [], begin
    for block in blocks:
        if block.address > at:
            chain.append((Block(at, block.address - at, pool, segment, rest), -1))
        chain.append((Block(block.address, block.size_bytes, pool, segment, IN_USE), block.number))
        at = block.address + block.size_bytes
    if at < end:
        chain.append((Block(at, end - at, pool, segment, rest), -1))
    return chain


def _enter(allocator: Allocator, chain: list[tuple[Block, int]]) -> None:
    """Links the blocks of a segment, and enters them as in use, free or unmapped."""
    for (before, _), (after, _) in itertools.pairwise(chain):
        before.after, after.before = after, before
    for block, number in chain:
        if block.state == FREE:
            block.pool.put(block)
        elif block.state == UNMAPPED:
            block.pool.put_unmapped(block)
        else:
            allocator.live[number] = block
            allocator.live_bytes += block.size
    allocator.live_peak_bytes = max(allocator.live_peak_bytes, allocator.live_bytes)
