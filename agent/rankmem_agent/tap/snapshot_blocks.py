"""How large the allocator makes each block: its recorded events do not say so, but it follows from them.

Stage: trainer, for the fallback without a compiler (:mod:`rankmem_agent.tap.snapshot_records`). Comes in: the
events of one device in order, and what a look lists as held. Goes out: by how much each block is larger than
its request rounded up to 512 bytes, and whether all of it agrees with the allocator. Pure, standard library
only.

The rule: a request is rounded up to 512 bytes, or as ``roundup_power2_divisions`` says, and cut off the free
range that begins at its address. Blocks of more than 1 MiB keep what is left of the range if that is at most
1 MiB, or if they are not below ``max_split_size``; all others, and those of expandable segments, are cut
exactly. A free range ends where the next block that is not free begins, or the segment.

Source: ``round_size``, ``should_split`` and ``try_merge_blocks`` in c10/cuda/CUDACachingAllocator.cpp (2.6 to
2.13). An allocator with another rule does not agree, and nothing is claimed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rankmem_agent.spool.layout import Action

ROUND_BYTES: Final = 512
SMALL_POOL_BYTES: Final = 1 << 20
"""Blocks up to here lie in segments of their own, and are always cut exactly."""
_U64_MASK: Final = 2**64 - 1


class Figures(NamedTuple):
    """A device's bytes: now, or at their highest."""

    allocated: int = 0
    active: int = 0
    reserved: int = 0
    requested: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a look lists of a device."""

    sizes: Mapping[int, int]
    """The allocator's bytes of each block that is not free, by address."""
    awaiting: frozenset[int]
    """Those that await another stream."""
    segments: Mapping[int, int]
    """Where each segment ends, by address, without expandable ones."""
    figures: Figures


def held_in(segments: Iterable[Mapping[str, Any]]) -> Held:
    """What the segments of a device's snapshot list.

    Raises:
        KeyError: they are not as torch has them since 2.1.
    """
    sizes: dict[int, int] = {}
    awaiting, ends = [], {}
    allocated = active = reserved = requested = 0
    for segment in segments:
        reserved += segment["total_size"]
        allocated += segment["allocated_size"]
        active += segment["active_size"]
        if not segment.get("is_expandable"):
            ends[segment["address"] & _U64_MASK] = (segment["address"] & _U64_MASK) + segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                address = block["address"] & _U64_MASK
                sizes[address] = block["size"]
                requested += block["requested_size"]
                if block["state"] != "active_allocated":
                    awaiting.append(address)
    figures = Figures(allocated, active, reserved, requested)
    return Held(sizes=sizes, awaiting=frozenset(awaiting), segments=ends, figures=figures)


class BlockSizes:
    """The blocks of one device. Begins with none."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._awaiting: set[int] = set()
        self._large: list[int] = []
        """Addresses of the blocks of more than 1 MiB, in order: segments that hold such hold no others."""
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._max_split_bytes = _U64_MASK
        self._divisions: list[int] = []
        self._fits = True
        self._now = [0, 0, 0]
        self._top = [0, 0, 0]

    @property
    def figures(self) -> Figures:
        """The bytes after the events so far; reserved is not followed."""
        allocated, active, requested = self._now
        return Figures(allocated=allocated, active=active, requested=requested)

    def set_up(self, settings: Mapping[str, Any]) -> None:
        """Takes the allocator's settings, as a snapshot has them, for the events that follow."""
        self._max_split_bytes = int(settings.get("max_split_size", -1)) & _U64_MASK
        divisions = settings.get("roundup_power2_divisions") or {}
        numbers = [int(number) for number in divisions.values()]
        self._divisions = numbers if max(numbers, default=0) > 1 else []

    def begin(self) -> None:
        """Events of another look follow: what they reach counts from here."""
        self._fits = True
        self._top = list(self._now)

    def move(self, action: Action, address: int, size_bytes: int) -> int:
        """Follows an event; by how many bytes the block is larger than its rounded request, 0 for most."""
        now = self._now
        rounded = -(-size_bytes // ROUND_BYTES) * ROUND_BYTES or ROUND_BYTES
        if action is Action.ALLOC:
            asked = self._by_divisions(size_bytes, rounded) if self._divisions else rounded
            block_bytes = asked if asked <= SMALL_POOL_BYTES else self._cut(address, asked)
            self._fits &= address not in self._sizes
            self._sizes[address] = block_bytes
            now[0] += block_bytes
            now[1] += block_bytes
            now[2] += size_bytes
            if now[0] > self._top[0] or now[1] > self._top[1] or now[2] > self._top[2]:
                self._top = [max(pair) for pair in zip(now, self._top, strict=True)]
            return block_bytes - rounded
        if action is Action.FREE_REQUESTED:
            block_bytes = self._sizes.get(address, 0)
            now[0] -= block_bytes
            self._awaiting.add(address)
        elif action is Action.FREE_COMPLETED:
            block_bytes = self._sizes.pop(address, 0)
            now[1] -= block_bytes
            now[2] -= size_bytes
            self._awaiting.discard(address)
            if block_bytes > SMALL_POOL_BYTES:
                del self._large[bisect_left(self._large, address)]
        else:
            self._move_segment(action, address, size_bytes)
            return 0
        self._fits &= block_bytes > 0
        return block_bytes - rounded

    def agree(self, held: Held, peaks: Figures, peaks_before: Figures | None) -> bool:
        """Whether every block is as the look lists it, and the highest bytes are the allocator's own.

        Args:
            peaks: the allocator's, at this look.
            peaks_before: at the look before; None at the first.
        """
        is_same = self._sizes == held.sizes and self._awaiting == held.awaiting
        is_same &= self.figures == held.figures._replace(reserved=0)
        allocated, active, requested = self._top
        was_reset = requested > peaks.requested
        for top, peak, before in (
            (allocated, peaks.allocated, peaks_before and peaks_before.allocated),
            (active, peaks.active, peaks_before and peaks_before.active),
        ):
            has_risen = before is not None and peak > before
            is_same &= (was_reset or top <= peak) and not (has_risen and top < peak)
        return self._fits and is_same

    def adopt(self, held: Held) -> None:
        """Goes on from what the look lists."""
        self._sizes, self._awaiting = dict(held.sizes), set(held.awaiting)
        self._large = sorted(address for address, size in held.sizes.items() if size > SMALL_POOL_BYTES)
        self._ends, self._starts = dict(held.segments), sorted(held.segments)
        self._now = [held.figures.allocated, held.figures.active, held.figures.requested]

    def _by_divisions(self, size_bytes: int, rounded: int) -> int:
        """Rounded up to a part of the power of two below it: how many parts depends on its MiB."""
        power = size_bytes.bit_length() - 1
        parts = self._divisions[min(max(power - 20, 0), len(self._divisions) - 1)]
        if parts <= 1 or size_bytes <= ROUND_BYTES * parts:
            return rounded
        step = (1 << power) >> (parts.bit_length() - 1)
        return -(-size_bytes // step) * step

    def _cut(self, address: int, rounded: int) -> int:
        """The bytes of a block of more than 1 MiB."""
        place = bisect_right(self._large, address)
        following = self._large[place] if place < len(self._large) else _U64_MASK
        insort(self._large, address)
        at = bisect_right(self._starts, address) - 1
        end = self._ends[self._starts[at]] if at >= 0 else 0
        if address >= end:
            return rounded  # of an expandable segment
        left = min(end, following) - address - rounded
        is_split = left > SMALL_POOL_BYTES and rounded < self._max_split_bytes
        return rounded if is_split else rounded + left

    def _move_segment(self, action: Action, address: int, size_bytes: int) -> None:
        if action is Action.SEGMENT_ALLOC:
            if address not in self._ends:
                insort(self._starts, address)
            self._ends[address] = address + size_bytes
        elif action is Action.SEGMENT_FREE and self._ends.pop(address, None) is not None:
            self._starts.remove(address)
