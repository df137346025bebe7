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

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from rankmem_aggregator.insights.blocks import FREE, IN_USE, UNMAPPED, Block, Device, Pool
from rankmem_aggregator.insights.expandable import Expandable
from rankmem_aggregator.insights.lives import Op
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
        self.place = 0
        """Of the request among those that were replayed."""


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
        self._merged: list[Block] = []
        """Blocks that are part of others now: to be used again, as making one costs as much as placing it."""
        self.pools: dict[tuple[Hashable, bool, int], Pool] = {}
        self._counters: dict[tuple[Hashable, bool], list[int]] = {}
        self._split_max = settings.max_split_size_bytes
        self._aligns = settings.align_bytes if settings.expandable_segments else 0
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
        if name not in self.live:
            raise KeyError(name)
        self.replay((Op.FREE,), (name,), (0,), (0,), ())

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
            for _, address, block in pool.free:
                if address in addresses and block.before is None and block.after is None:
                    self._give_back(block)

    def release(self, pool: Pool) -> None:
        """Gives the wholly free segments, or pages, of one pool back."""
        for _, _, block in pool.free:
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
        self.replay((Op.ALLOC,), (name,), (size,), (0,), ((pool, pool),))
        return self.live[name]

    def replay(
        self,
        ops: Sequence[int],
        names: Sequence[Hashable],
        sizes: Sequence[int],
        groups: Sequence[int],
        pools: Sequence[Sequence[Pool]],
        flushed_pools: Mapping[int, Collection[Hashable]] = MappingProxyType({}),
        *,
        first: int = 0,
    ) -> None:
        """Allocates, frees and empties the cache, one op after another.

        All that is usual is in this loop, which changes the pools' lists itself: calls would cost a quarter
        more.

        Args:
            ops: members of :class:`Op`. A RETRY is left out: the allocator makes its own.
            names: of the blocks. A free of one that is not alive is left out.
            sizes: of the blocks to allocate, rounded already.
            groups: places in ``pools`` of the blocks to allocate.
            pools: for each group that of large and that of small blocks.
            flushed_pools: by op that empties the cache: the private pools whose graphs are gone.
            first: the place of the first op in the others.

        Raises:
            OutOfMemory: as :meth:`malloc`; its ``place`` is that of the op.
        """
        live, merged, collects = self.live, self._merged, self._collects
        live_bytes, peak_bytes = self.live_bytes, self.live_peak_bytes
        split_max, aligns = self._split_max, self._aligns
        nothing: tuple[list[int], list[Block | None]] = [], [None]
        try:
            for place, op in enumerate(ops, first):
                if op == 0:  # ALLOC
                    size = sizes[place]
                    pool = pools[groups[place]][size <= SMALL_BYTES_MAX]
                    if collects:
                        pool.counter[0] += 1
                    free_sizes, of_size = pool.sizes, pool.of_size
                    at = bisect_left(free_sizes, size)
                    addresses, same = of_size[at] if at < len(free_sizes) else nothing
                    block = same[0]
                    if (
                        block is not None
                        and (after := block.after) is not None
                        and after.state == UNMAPPED
                        and (len(same) > 1 or at + 1 < len(free_sizes))
                    ):
                        block = self._expandable.best(pool, size)
                    if block is None or block.size >= split_max:
                        block = self._unusual(pool, size, block)
                    elif block is not same[0]:
                        pool.take(block)
                    elif len(same) == 1:
                        del free_sizes[at], of_size[at]
                    else:
                        del addresses[0], same[0]
                    if aligns and size >= LARGE_ROUND_BYTES:
                        block = self._expandable.aligned(block, size, aligns)
                    live[names[place]] = block
                    block.state = IN_USE
                    rest = block.size - size
                    splits = rest >= pool.least_rest and (
                        size < split_max or pool.least_rest == MIN_BLOCK_BYTES
                    )
                    live_bytes += size if splits else block.size
                    if live_bytes > peak_bytes:
                        peak_bytes = live_bytes
                    if not splits:
                        continue
                    block.size, size, address = size, rest, block.address + size
                    free = merged.pop() if merged else Block(0, 0, pool, 0)
                    free.address, free.pool, free.segment = address, pool, block.segment
                    free.before, free.after, block.after = block, block.after, free
                    if free.after is not None:
                        free.after.before = free
                elif op == 1:  # FREE
                    freed = live.pop(names[place], None)
                    if freed is None:
                        continue
                    free = freed
                    pool, size, address = free.pool, free.size, free.address
                    free_sizes, of_size = pool.sizes, pool.of_size
                    live_bytes -= size
                    other = free.before
                    if other is not None and other.state == FREE:
                        at = bisect_left(free_sizes, other.size)
                        addresses, same = of_size[at]
                        if len(same) == 1:
                            del free_sizes[at], of_size[at]
                        else:
                            among = bisect_left(addresses, other.address)
                            del addresses[among], same[among]
                        merged.append(other)
                        size += other.size
                        address = free.address = other.address
                        before = free.before = other.before
                        if before is not None:
                            before.after = free
                    other = free.after
                    if other is not None and other.state == FREE:
                        at = bisect_left(free_sizes, other.size)
                        addresses, same = of_size[at]
                        if len(same) == 1:
                            del free_sizes[at], of_size[at]
                        else:
                            among = bisect_left(addresses, other.address)
                            del addresses[among], same[among]
                        merged.append(other)
                        size += other.size
                        after = free.after = other.after
                        if after is not None:
                            after.before = free
                    free.state = FREE
                else:
                    if op == Op.EMPTY_CACHE:
                        self.empty_cache(flushed_pools[place])
                    continue
                free.size = size
                if collects:
                    free.born = pool.counter[0]
                at = bisect_left(free_sizes, size)
                if at < len(free_sizes) and free_sizes[at] == size:
                    addresses, same = of_size[at]
                    among = bisect_left(addresses, address)
                    addresses.insert(among, address)
                    same.insert(among, free)
                else:
                    free_sizes.insert(at, size)
                    of_size.insert(at, ([address], [free]))
        except OutOfMemory as exc:
            exc.place = place
            raise
        finally:
            self.live_bytes, self.live_peak_bytes = live_bytes, peak_bytes

    def _unusual(self, pool: Pool, size: int, free: Block | None) -> Block:
        """The free block that was found, out of its pool, unless it is too large for so little; else
        a new one."""
        if free is None or size < self._split_max:
            return self._new_block(pool, size)
        if free.size >= size + self.settings.max_non_split_rounding_bytes:
            return self._new_block(pool, size)
        pool.take(free)
        return free

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
        block = next(pool.at_least(wanted), None)
        if block is not None and not block.segment:
            self._give_back(block)
            return True
        released = 0
        for size_bytes, _, block in reversed(pool.free):
            if released >= wanted or size_bytes < self._split_max:
                break
            if not block.segment:
                released += size_bytes
                self._give_back(block)
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
