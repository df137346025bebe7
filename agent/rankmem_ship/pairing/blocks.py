"""Which block an event is about: allocs and frees matched by address.

Stage: pairing; shipper process, pure functions over arrays. In: the blocks alive before a batch and the
batch's block events in log order. Out: for each event the number of its block. An address is used again
and again, also within a batch; the log orders a free before the alloc that reuses its address (the tap
records a free before the block is given back), so "the last alloc at this address without a completed
free since" is the block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankmem_ship.pairing.state import ABSENT, Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Blocks are numbered: those alive before (their index), then the batch's allocs in log order."""

    block: Array
    """Of each event: its block's number, ABSENT for a free of a block never seen."""
    implied_free: Array
    """Of each event: the block that an alloc shows to be gone, since its address is used again; ABSENT."""


def match_blocks(live_keys: Array, keys: Array, is_alloc: Array, is_free: Array) -> Matches:
    """Match block events to blocks.

    Args:
        live_keys: uint64, sorted, no key twice: blocks alive before the batch.
        keys: uint64, one for each block event, in log order.
        is_alloc: bool, the event makes a block.
        is_free: bool, the event ends it (free_completed). Neither of both: free_requested.
    """
    num_live, num_events = len(live_keys), len(keys)
    carried = _carried(live_keys, keys)
    num_carried = len(carried)
    # A carried block takes part as an alloc before all events; the stable sort keeps log order in a key.
    all_keys = np.concatenate([live_keys[carried], keys])
    order = np.argsort(all_keys, kind="stable")
    alloc = np.concatenate([np.ones(num_carried, np.bool_), is_alloc])[order]
    free = np.concatenate([np.zeros(num_carried, np.bool_), is_free])[order]
    numbers = np.concatenate([carried, np.where(is_alloc, num_live - 1 + np.cumsum(is_alloc), ABSENT)])[order]

    place = np.arange(len(order))
    sorted_keys = all_keys[order]
    group_begins = np.ones(len(order), np.bool_)
    group_begins[1:] = sorted_keys[1:] != sorted_keys[:-1]
    group_start = np.maximum.accumulate(np.where(group_begins, place, 0))
    alloc_upto = np.maximum.accumulate(np.where(alloc, place, -1))
    alloc_before = _shifted(alloc_upto)
    free_before = _shifted(np.maximum.accumulate(np.where(free, place, -1)))

    alive_before = (alloc_before >= group_start) & (free_before < alloc_before)
    block = np.where(alloc, numbers, np.where(alive_before, numbers[alloc_before], ABSENT))
    implied = np.where(alloc & alive_before, numbers[alloc_before], ABSENT)

    unsorted = np.empty(num_carried + num_events, np.int64)
    unsorted_implied = np.empty_like(unsorted)
    unsorted[order] = block
    unsorted_implied[order] = implied
    return Matches(block=unsorted[num_carried:], implied_free=unsorted_implied[num_carried:])


def _carried(live_keys: Array, keys: Array) -> Array:
    """Indices of the live blocks whose key occurs in the batch."""
    if not len(live_keys) or not len(keys):
        return np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(live_keys, keys), len(live_keys) - 1)
    hit = np.zeros(len(live_keys), np.bool_)
    hit[place[live_keys[place] == keys]] = True
    return np.flatnonzero(hit)


def _shifted(values: Array) -> Array:
    """The values one place later: what was so before each event."""
    before = np.empty_like(values)
    before[:1] = -1
    before[1:] = values[:-1]
    return before
