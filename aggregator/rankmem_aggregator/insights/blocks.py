"""The parts of the allocator's model: the device, the blocks of a segment, and the pools of free ones.

Stage: insights; parts of :mod:`~rankmem_aggregator.insights.allocator`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Final

from rankmem_aggregator.insights.settings import (
    MIN_BLOCK_BYTES,
    SMALL_BYTES_MAX,
    SMALL_SEGMENT_BYTES,
    Settings,
)

IN_USE: Final = 0
FREE: Final = 1
UNMAPPED: Final = 2
"""Addresses of an expandable segment without memory behind them."""
FIRST_ADDRESS: Final = 1 << 44
"""Of invented segments."""


class Device:
    """What a device has given to the allocator."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = self.reserved_peak_bytes = 0
        self.actions: list[tuple[str, int, int]] | None = None
        """Where it is a list: what it gave and got back: action, address, bytes."""
        self._next_address = FIRST_ADDRESS

    def has_room(self, size_bytes: int) -> bool:
        """Whether it has that much more."""
        return self.reserved_bytes + size_bytes <= self.capacity_bytes

    def moved(self, action: str, address: int, size_bytes: int) -> None:
        """Notes that it gave bytes, or got them back."""
        gives = action in ("segment_alloc", "segment_map")
        self.reserved_bytes += size_bytes if gives else -size_bytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        if self.actions is not None:
            self.actions.append((action, address, size_bytes))

    def invented(self, size_bytes: int) -> int:
        """An address that nothing has had, with so much room behind it."""
        address = self._next_address
        self._next_address += -(-size_bytes // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
        return address


class Block:
    """A range of a segment: in use, free or unmapped."""

    __slots__ = ("address", "after", "before", "born", "pool", "segment", "size", "state")

    def __init__(self, address: int, size: int, pool: Pool, segment: int, state: int = FREE) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.segment = segment
        """Of an expandable one the address where it begins, else 0."""
        self.state = state
        self.before: Block | None = None
        self.after: Block | None = None
        self.born = 0
        """Count of the searches in its pool when it became free."""


class Pool:
    """The free blocks of one private pool, stream and size class."""

    __slots__ = ("counter", "least_rest", "of_size", "page", "private", "sizes", "small", "unmapped")

    def __init__(self, private: Hashable, small: bool, counter: list[int], settings: Settings) -> None:
        self.private = private
        self.small = small
        self.sizes: list[int] = []
        """Of the free blocks, each once, in order. Hundreds of free blocks have some ten sizes: two short
        searches, for the size and then the address, take less than one for both."""
        self.of_size: list[tuple[list[int], list[Block]]] = []
        """For each of these sizes the addresses of its free blocks, in order, and the blocks."""
        self.unmapped: list[tuple[int, Block]] = []
        """By address."""
        self.counter = counter
        """How often a free block was searched for, in this size class of the private pool."""
        self.page = SMALL_SEGMENT_BYTES if small else settings.large_segment_bytes
        is_fine = small or settings.expandable_segments
        self.least_rest = MIN_BLOCK_BYTES if is_fine else SMALL_BYTES_MAX + 1
        """What is left over of a block is split off from this on."""

    @property
    def free(self) -> list[tuple[int, int, Block]]:
        """The free blocks as they are now, by size and address."""
        return [(block.size, block.address, block) for block in self.at_least(0)]

    def at_least(self, size: int) -> Iterator[Block]:
        """The free blocks from this size on, by size and address; they must not change meanwhile."""
        for _, same in self.of_size[bisect_left(self.sizes, size) :]:
            yield from same

    def put(self, block: Block) -> None:
        """Adds a free block."""
        block.born = self.counter[0]
        at = bisect_left(self.sizes, block.size)
        if at < len(self.sizes) and self.sizes[at] == block.size:
            addresses, same = self.of_size[at]
            place = bisect_left(addresses, block.address)
            addresses.insert(place, block.address)
            same.insert(place, block)
        else:
            self.sizes.insert(at, block.size)
            self.of_size.insert(at, ([block.address], [block]))

    def take(self, block: Block) -> None:
        """Removes a free block."""
        at = bisect_left(self.sizes, block.size)
        addresses, same = self.of_size[at]
        if len(same) == 1:
            del self.sizes[at], self.of_size[at]
        else:
            place = bisect_left(addresses, block.address)
            del addresses[place], same[place]

    def put_unmapped(self, block: Block) -> None:
        """Adds an unmapped block."""
        insort(self.unmapped, (block.address, block), key=_address)

    def take_unmapped(self, block: Block) -> None:
        """Removes an unmapped block."""
        del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]


def _address(entry: tuple[int, Block]) -> int:
    return entry[0]
