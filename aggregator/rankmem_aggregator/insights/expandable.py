"""Expandable segments: ranges of addresses that the allocator maps and unmaps by pages.

Stage: insights; a part of :mod:`~rankmem_aggregator.insights.allocator`. For each pool there is a range of
9/8 of the device's memory as addresses, with pages of 2 MiB (small) or 20 MiB (large). A block that fits
nowhere takes the lowest address with room, free and unmapped blocks together, and maps what it lacks, by
whole pages.

Written after ``CUDACachingAllocator.cpp`` (find_expandable_block, map_block, try_allocate_expandable_block,
unmap_block, ExpandableSegment), torch 2.1 to 2.11.
"""

from __future__ import annotations

from collections.abc import Callable

from rankmem_aggregator.insights.blocks import FREE, IN_USE, UNMAPPED, Block, Device, Pool


class Expandable:
    """The expandable segments of an allocator.

    Args:
        device: where their memory comes from.
        device_bytes: its memory: the addresses of a segment follow from it.
        place: where a new segment lies; None: its addresses are invented.
    """

    def __init__(
        self, device: Device, device_bytes: int, place: Callable[[int], int | None] | None = None
    ) -> None:
        self._device = device
        self._place = place
        self._device_bytes = device_bytes

    def best(self, pool: Pool, size: int) -> Block:
        """The free block to take for ``size`` bytes, where one is large enough: the first, but a block that
        can expand counts with its room."""
        found, *others = pool.at_least(size)
        for block in others:
            if not found.segment or _with_room(block) >= _with_room(found):
                break
            found = block
        return found

    def take(self, pool: Pool, size: int) -> Block | None:
        """A free block of at least ``size`` bytes, mapped for it and taken out of its pool; None: no room on
        the device. What was mapped before that failed stays."""
        block = self._with_addresses(pool, size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            rest = block.after
            assert rest is not None  # free, then unmapped: it was found to have the room
            if not self._map(rest, min(size - block.size, rest.size)):
                return None
            block = rest
        pool.take(block)
        return block

    def aligned(self, block: Block, size: int, step: int) -> Block:
        """The part of a free block, in no list, that begins at a multiple of ``step``, if ``size`` bytes fit;
        what is before it is free. torch_npu alone asks for it."""
        front = -block.address % step
        if front == 0 or front + size > block.size:
            return block
        rest = Block(block.address + front, block.size - front, block.pool, block.segment)
        _link(block, rest, block.after)
        block.size = front
        block.pool.put(block)
        return rest

    def unmap(self, block: Block) -> None:
        """Gives the whole pages of a free block back."""
        pool, page, begin = block.pool, block.pool.page, block.segment
        first = -(-(block.address - begin) // page) * page + begin
        last = (block.address + block.size - begin) // page * page + begin
        if last <= first:
            return
        pool.take(block)
        for address, size in (
            (block.address, first - block.address),
            (last, block.address + block.size - last),
        ):
            if size:
                self._split_off(block, address, size, first_half=address < first)
        block.address, block.size, block.state = first, last - first, UNMAPPED
        self._merge(block)
        pool.put_unmapped(block)
        self._device.moved("segment_unmap", first, last - first)
        if block.before is None and block.after is None:
            pool.take_unmapped(block)

    def _with_addresses(self, pool: Pool, size: int) -> Block:
        """The lowest block from which on there are addresses enough, free or unmapped; else a new range's."""
        for _, unmapped in pool.unmapped:
            start = unmapped
            if start.before is not None and start.before.state != IN_USE:
                start = start.before
            room, each = 0, start
            while each is not None and each.state != IN_USE and room < size:
                room += each.size
                each = each.after  # type: ignore[assignment]
            if room >= size:
                return start
        page = pool.page
        # A request beyond that fails on the device; replays also ask how large one would have to be for it.
        room = -(-max(self._device_bytes * 9 // 8, size) // page) * page
        given = self._place(room) if self._place is not None else None
        address = self._device.invented(room + page) if given is None else given
        block = Block(address, room, pool, address, UNMAPPED)
        pool.put_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        pool, page = block.pool, block.pool.page
        mapped = min(-(-size // page) * page, block.size)
        if not self._device.has_room(mapped):
            return False
        self._device.moved("segment_map", block.address, mapped)
        pool.take_unmapped(block)
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, pool, block.segment, UNMAPPED)
            _link(block, rest, block.after)
            pool.put_unmapped(rest)
            block.size = mapped
        block.state = FREE
        self._merge(block)
        pool.put(block)
        return True

    def _split_off(self, block: Block, address: int, size: int, *, first_half: bool) -> None:
        """Makes a free block of what stays mapped at one end of a block."""
        rest = Block(address, size, block.pool, block.segment)
        if first_half:
            _link(block.before, rest, block)
        else:
            _link(block, rest, block.after)
        block.pool.put(rest)

    def _merge(self, block: Block) -> None:
        """Joins a block, which is in no list, with its neighbours of the same state."""
        for other in (block.before, block.after):
            if other is None or other.state != block.state:
                continue
            if other.state == FREE:
                other.pool.take(other)
            else:
                other.pool.take_unmapped(other)
            block.size += other.size
            if other is block.before:
                block.address, block.before = other.address, other.before
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = other.after
                if block.after is not None:
                    block.after.before = block


def _with_room(block: Block) -> int:
    """Its size, with that of the unmapped block behind it."""
    after = block.after
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)


def _link(before: Block | None, block: Block, after: Block | None) -> None:
    """Puts a block between two."""
    block.before, block.after = before, after
    if before is not None:
        before.after = block
    if after is not None:
        after.before = block
