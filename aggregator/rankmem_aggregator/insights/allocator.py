"""A model of PyTorch's caching allocator: which addresses requests get, and what it takes from the device.

Stage: insights, in the reader's process. In: requests and frees, one after another. Out: addresses, and the
bytes it holds. No device is touched.

**Rules.** A pool for each private pool, stream and size class (small up to 1 MiB, else large). A request
takes the smallest free block that is large enough, of those the lowest; what is left over is split off if it
is at least 512 bytes (small) or above 1 MiB (large). Where none fits, a segment of 2 MiB, 20 MiB or the
block's own size comes from the device; if that has no room, oversize blocks are given back, then all wholly
free segments, then the request fails. A freed block merges with free neighbours of its segment.

Written after ``c10/cuda/CUDACachingAllocator.cpp`` (malloc, get_free_block, should_split, alloc_block,
release_available_cached_blocks, release_cached_blocks, garbage_collect_cached_blocks, free_block), torch 2.0
to 2.11. Held against recordings of devices (default settings; of NPUs also expandable segments) and, with
every setting, against that library itself on a fake CUDA runtime: tests/e2e/test_replay_real_allocator.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable

import numpy as np

from rankmem_aggregator.insights.blocks import FREE, IN_USE, Block, Device, Pool
from rankmem_aggregator.insights.expandable import Expandable
from rankmem_aggregator.insights.settings import (
    LARGE_ROUND_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES_MAX,
    UNLIMITED,
    Settings,
)


class OutOfMemory(Exception):
    """A request found no room."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"out of memory: no room for {size_bytes} bytes")
        self.size_bytes = size_bytes


class Allocator:
    """The allocator of one device.

    Args:
        settings: its settings, and what the device gives.
        place: the address of a new segment of so many bytes; None: one is invented.
    """

    def __init__(self, settings: Settings, place: Callable[[int], int | None] | None = None) -> None:
        self.settings = settings
        self.place = place
        self.live: dict[Hashable, Block] = {}
        """Blocks in use, by the caller's name for them."""
        self.live_bytes = self.live_peak_bytes = 0
        self.device = Device(settings.capacity_bytes)
        self.num_retries = 0
        self.pools: dict[tuple[Hashable, bool, int], Pool] = {}
        self._counters: dict[tuple[Hashable, bool], list[int]] = {}
        self._split_max = settings.max_split_size_bytes
        self._aligns = settings.align_bytes > 0 and settings.expandable_segments
        self._collects = settings.garbage_collection_threshold > 0 and settings.allowed_bytes is not None
        self._expandable = Expandable(self.device, settings.device_bytes, place)

    def malloc(self, name: Hashable, size_bytes: int, stream: int = 0, private: Hashable = None) -> int:
        """Allocates a block; its address.

        Args:
            name: the caller's, to free it by.
            size_bytes: requested.
            stream: the stream that it belongs to.
            private: id of the private pool; None: the default pool.

        Raises:
            OutOfMemory: there is no room, also after all caches were given back.
        """
        size = int(self.settings.block_bytes(np.array([size_bytes]))[0])
        return self.take(name, size, self.pool(private, size <= SMALL_BYTES_MAX, stream)).address

    def free(self, name: Hashable) -> None:
        """Frees a block: when its last stream is done with it.

        Raises:
            KeyError: there is none of that name.
        """
        block = self.live.pop(name)
        self.live_bytes -= block.size
        pool = block.pool
        other = block.before
        if other is not None and other.state == FREE:
            del pool.free[bisect_left(pool.free, (other.size, other.address))]
            block.address = other.address
            block.size += other.size
            before = block.before = other.before
            if before is not None:
                before.after = block
        other = block.after
        if other is not None and other.state == FREE:
            del pool.free[bisect_left(pool.free, (other.size, other.address))]
            block.size += other.size
            after = block.after = other.after
            if after is not None:
                after.before = block
        block.state = FREE
        block.born = pool.counter[0]
        insort(pool.free, (block.size, block.address, block))

    def empty_cache(self, private_pools: Collection[Hashable] = ()) -> None:
        """Gives all wholly free segments back, as ``torch.cuda.empty_cache()``.

        Args:
            private_pools: those of them whose graphs are gone; the segments of others stay.
        """
        for small in (False, True):
            for (private, is_small, _), pool in self.pools.items():
                if is_small == small and (private is None or private in private_pools):
                    self.release(pool)

    def give_back(self, addresses: Collection[int]) -> None:
        """Gives the wholly free segments at these addresses back."""
        for pool in self.pools.values():
            for _, address, block in list(pool.free):
                if address in addresses and block.before is None and block.after is None:
                    self._give_back(block)

    def release(self, pool: Pool) -> None:
        """Gives the wholly free segments, or pages, of one pool back."""
        for _, _, block in list(pool.free):
            if block.segment:
                self._expandable.unmap(block)
            elif block.before is None and block.after is None:
                self._give_back(block)

    def pool(self, private: Hashable, small: bool, stream: int) -> Pool:
        """The pool of these blocks."""
        key = (private, small, stream)
        pool = self.pools.get(key)
        if pool is None:
            counter = self._counters.setdefault((private, small), [0])
            pool = self.pools[key] = Pool(private, small, counter, self.settings)
        return pool

    def take(self, name: Hashable, size: int, pool: Pool) -> Block:
        """Allocates ``size`` bytes, rounded already, from its pool.

        Raises:
            OutOfMemory: as :meth:`malloc`.
        """
        if self._collects:
            pool.counter[0] += 1
        free = pool.free
        at = bisect_left(free, (size,))
        block = None
        if at < len(free):
            block = free[at][2]
            if block.segment:
                at = self._expandable.best(free, at)
                block = free[at][2]
            if block.size >= self._split_max and (
                size < self._split_max or block.size >= size + self.settings.max_non_split_rounding_bytes
            ):
                block = None
            else:
                del free[at]
        if block is None:
            block = self._new_block(pool, size)
        if self._aligns and size >= LARGE_ROUND_BYTES:
            block = self._expandable.aligned(block, size, self.settings.align_bytes)
        rest = block.size - size
        if rest >= pool.least_rest and (size < self._split_max or pool.least_rest == MIN_BLOCK_BYTES):
            other = Block(block.address + size, rest, pool, block.segment)
            other.before = block
            after = other.after = block.after
            if after is not None:
                after.before = other
            block.after = other
            block.size = size
            other.born = pool.counter[0]
            insort(free, (rest, other.address, other))
        block.state = IN_USE
        self.live[name] = block
        self.live_bytes += block.size
        if self.live_bytes > self.live_peak_bytes:
            self.live_peak_bytes = self.live_bytes
        return block

    def _new_block(self, pool: Pool, size: int) -> Block:
        if self._collects:
            self._collect(pool)
        block = self._from_device(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._from_device(pool, size)
        if block is None:
            self.num_retries += 1
            self.empty_cache()
            block = self._from_device(pool, size)
        if block is None:
            raise OutOfMemory(size)
        return block

    def _from_device(self, pool: Pool, size: int) -> Block | None:
        wanted = self.settings.segment_bytes(size)
        allowed = self.settings.allowed_bytes
        if allowed is not None and self.device.reserved_bytes + wanted > allowed:
            return None
        if self.settings.expandable_segments:
            return self._expandable.take(pool, size)
        if not self.device.has_room(wanted):
            return None
        address = self.place(wanted) if self.place is not None else None
        block = Block(self.device.invented(wanted) if address is None else address, wanted, pool, 0)
        self.device.moved("segment_alloc", block.address, wanted)
        return block

    def _give_back(self, block: Block) -> None:
        block.pool.take(block)
        self.device.moved("segment_free", block.address, block.size)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Gives back one free block that is large enough, else the largest ones until they are enough."""
        if self._split_max == UNLIMITED:
            return False
        wanted = max(size, self._split_max)
        at = bisect_left(pool.free, (wanted,))
        if at < len(pool.free) and not pool.free[at][2].segment:
            self._give_back(pool.free[at][2])
            return True
        released, at = 0, len(pool.free) - 1
        while at >= 0 and released < wanted and pool.free[at][0] >= self._split_max:
            block = pool.free[at][2]
            if not block.segment:
                released += block.size
                self._give_back(block)
            at -= 1
        return released >= wanted

    def _collect(self, pool: Pool) -> None:
        """Garbage collection: segments of the large default pool that were unused for longer than average."""
        limit = int(self.settings.garbage_collection_threshold * (self.settings.allowed_bytes or 0))
        target = self.device.reserved_bytes - limit
        if target <= 0:
            return
        whole = [
            (each.counter[0] - block.born, block)
            for (private, small, _), each in self.pools.items()
            if private is None and not small
            for _, _, block in each.free
            if block.before is None and block.after is None
        ]
        released, goes_on = 0, True
        while whole and released < target and goes_on:
            average = sum(age for age, _ in whole) / len(whole)
            old = [(age, block) for age, block in whole if age >= average and not block.segment]
            goes_on = bool(old)
            whole = [(age, block) for age, block in whole if age < average or block.segment]
            for _, block in old:
                released += block.size
                self._give_back(block)
