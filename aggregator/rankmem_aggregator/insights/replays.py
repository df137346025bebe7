"""Replays of a recording: under its own settings, to check the model, and under others or on another device.

Stage: insights. In: a :class:`~rankmem_aggregator.insights.lives.Trace`. Out: :class:`Check` and
:class:`Outcome`. Pure Python: 0.6 M operations a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rankmem_aggregator.insights.allocator import Allocator, OutOfMemory
from rankmem_aggregator.insights.lives import GAINS, Op, Trace, block_bytes_of
from rankmem_aggregator.insights.packing import intervals, live_peak_bytes
from rankmem_aggregator.insights.settings import SMALL_BYTES_MAX, UNLIMITED, Settings
from rankmem_aggregator.insights.start_state import restore
from rankmem_aggregator.quantity_text import counted

NEEDED_WITHIN_BYTES: Final = 16 << 20
"""How closely :func:`needed_bytes` finds the smallest capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How the model reproduced the recording it was given."""

    num_allocations: int
    num_same_address: int
    num_same_decision: int
    """To take a free block or a new segment, and of which size."""
    reserved_difference_bytes: int
    """The largest difference of the bytes reserved, after any allocation."""
    recorded_peak_bytes: int
    replayed_peak_bytes: int
    reasons: tuple[str, ...] = ()
    """Of a replay that is not exact: what the recording does not tell, a clause each."""

    @property
    def is_exact(self) -> bool:
        """Whether every address and every byte is as recorded."""
        return self.num_same_address == self.num_allocations and self.reserved_difference_bytes == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a replay came to."""

    reserved_peak_bytes: int
    held_peak_bytes: int
    """Of the blocks in use, with rests too small to be split off."""
    num_retries: int
    failed_at: int | None = None
    """The op that found no room: its place among the trace's, negative for an older block."""


def check(trace: Trace) -> Check:
    """Replays a recording under its own settings, from its own state, and compares each allocation.

    New segments lie where they were recorded, if the model makes the same ones.
    """
    recorded: list[tuple[str, int, int]] = []
    allocator = Allocator(trace.settings, lambda size: _recorded_place(recorded, size))
    restore(allocator, trace)
    made: list[tuple[str, int, int]] = []
    allocator.device.actions = made
    sizes, _ = block_bytes_of(trace, trace.settings)
    same_address = same_decision = difference = 0
    flushes_whole = trace.settings.expandable_segments or not (
        trace.settings.max_split_size_bytes < UNLIMITED or trace.settings.garbage_collection_threshold
    )
    for place, op in enumerate(trace.ops):
        if op == Op.FREE:
            if trace.block[place] in allocator.live:
                allocator.free(trace.block[place])
        elif op != Op.ALLOC:
            if flushes_whole:
                allocator.empty_cache(trace.flushed_pools[place])
            else:
                allocator.give_back({address for _, address, _ in trace.moves[place]})
        else:
            made.clear()
            moves = trace.moves.get(place, ())
            recorded[:] = moves
            private, stream = trace.groups[trace.group[place]]
            size = sizes[place]
            block = allocator.take(
                trace.block[place], size, allocator.pool(private, size <= SMALL_BYTES_MAX, stream)
            )
            same_address += block.address == trace.address[place]
            same_decision += [one[2] for one in made if one[0] in GAINS] == [one[2] for one in moves]
            difference = max(difference, abs(allocator.device.reserved_bytes - trace.reserved[place]))
    found = Check(
        num_allocations=trace.num_allocations,
        num_same_address=same_address,
        num_same_decision=same_decision,
        reserved_difference_bytes=difference,
        recorded_peak_bytes=trace.recorded_peak_bytes(),
        replayed_peak_bytes=allocator.device.reserved_peak_bytes,
    )
    return found if found.is_exact else replace(found, reasons=_untold(trace))


def _untold(trace: Trace) -> tuple[str, ...]:
    """What a recording does not tell that a replay of it rests on."""
    without_size = trace.older_block_bytes.count(0)
    clauses = {
        f"of {counted(trace.num_unknown_pools, 'segment')} given back before the snapshot was taken it does "
        "not tell the private pool, if any": trace.num_unknown_pools,
        f"{counted(trace.num_unknown_frees, 'free')} of blocks that it does not tell of": (
            trace.num_unknown_frees
        ),
        f"the allocator's size of {counted(without_size, 'older block')} is not in it": without_size,
    }
    return tuple(clause for clause, number in clauses.items() if number)


def _recorded_place(moves: list[tuple[str, int, int]], size_bytes: int) -> int | None:
    """Where the allocation that is replayed got a new segment of this size, or an expandable one."""
    for place, (action, address, size) in enumerate(moves):
        if action == "segment_map" or size == size_bytes:
            if action != "segment_map":
                del moves[place]
            return address
    return None


def run(
    trace: Trace, settings: Settings, *, from_state: bool = False, last_capacity_bytes: int | None = None
) -> Outcome:
    """Replays the same requests under any settings, on a device of any capacity.

    Blocks older than the recording are placed first, by address: how they came to lie where they lay is not
    recorded. Flushes of the program stay; retries of the allocator are its own.

    Args:
        trace: the requests.
        settings: the settings, and the capacity.
        from_state: the older blocks lie where they lay; only for the settings of the recording.
        last_capacity_bytes: what the device gives when the last op comes; None: what it always gave.
    """
    allocator = Allocator(settings)
    sizes, older = block_bytes_of(trace, settings)
    pools = [
        [allocator.pool(private, small, stream) for small in (False, True)]
        for private, stream in trace.groups
    ]
    failed_at, is_placed = None, False
    try:
        if from_state:
            restore(allocator, trace)
        else:
            placed = sorted(range(trace.num_older), key=trace.older_address.__getitem__)
            asked = [older[number] for number in placed], [trace.older_group[number] for number in placed]
            allocator.replay([Op.ALLOC] * len(placed), placed, *asked, pools)
        is_placed = True
        requests = trace.block, sizes, trace.group, pools, trace.flushed_pools
        if last_capacity_bytes is None:
            allocator.replay(trace.ops, *requests)
        else:
            allocator.replay(trace.ops[:-1], *requests)
            allocator.device.capacity_bytes = last_capacity_bytes
            allocator.replay(trace.ops[-1:], *requests, first=len(trace.ops) - 1)
    except OutOfMemory as failed:
        failed_at = failed.place if is_placed else -1
    return Outcome(
        reserved_peak_bytes=allocator.device.reserved_peak_bytes,
        held_peak_bytes=allocator.live_peak_bytes,
        num_retries=allocator.num_retries,
        failed_at=failed_at,
    )


def needed_bytes(trace: Trace, settings: Settings, outcome: Outcome | None = None) -> int:
    """The smallest capacity on which a recording runs under these settings, found within 16 MiB.

    Args:
        outcome: of :func:`run` with the same settings and no limit, where it is known.
    """
    least = live_peak_bytes(intervals(trace, settings))
    enough = (outcome or run(trace, settings)).reserved_peak_bytes
    while enough - least > NEEDED_WITHIN_BYTES:
        middle = (least + enough) // 2
        tried = run(trace, replace(settings, capacity_bytes=middle))
        if tried.failed_at is None:
            enough = middle
        else:
            least = middle
    return enough
