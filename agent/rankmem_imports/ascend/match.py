"""Matches records of an allocator with allocations and releases of operators' blocks.

Stage: readers, pure functions over arrays. A profiler folder has the same actions twice: as totals after
each (MEMORY_RECORD, without a block) and as blocks with their times (OP_MEMORY). They are matched by time.
If several have the same time, the totals decide, then the change of the totals, then the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankmem_imports.ascend.rows import UNKNOWN
from rankmem_imports.ascend.stage import ACTIVE_RELEASED, ALLOC, RELEASED
from rankmem_ship.pairing.state import ABSENT, Array


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationEvents:
    """Allocations and releases of operators' blocks, by time."""

    time_ns: Array
    kind: Array
    """ALLOC, RELEASED, ACTIVE_RELEASED."""
    device: Array
    size: Array
    allocated: Array
    """Bytes after it; UNKNOWN where not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Records of allocators, by time."""

    time_ns: Array
    device: Array
    allocated: Array
    change: Array
    """Of the component's bytes; UNKNOWN at its first record."""


def match(actions: Actions, allocations: AllocationEvents) -> Array:
    """For each action the place of the allocation event that it is, or ABSENT."""
    matched = np.full(len(actions.time_ns), ABSENT)
    if not len(allocations.time_ns) or not len(actions.time_ns):
        return matched
    left = np.searchsorted(actions.time_ns, allocations.time_ns, "left")
    count = np.searchsorted(actions.time_ns, allocations.time_ns, "right") - left
    alone = np.ones(len(allocations.time_ns), np.bool_)
    same = allocations.time_ns[1:] == allocations.time_ns[:-1]
    alone[1:] &= ~same
    alone[:-1] &= ~same
    simple = np.flatnonzero(alone & (count == 1))
    simple = simple[actions.device[left[simple]] == allocations.device[simple]]
    matched[left[simple]] = simple
    ambiguous = np.flatnonzero((count > 1) | ((count == 1) & ~alone))
    for start in np.unique(left[ambiguous]):
        here = ambiguous[left[ambiguous] == start]
        _settle(actions, allocations, np.arange(start, start + int(count[here[0]])), here, matched)
    return matched


def _settle(
    actions: Actions, allocations: AllocationEvents, places: Array, here: Array, matched: Array
) -> None:
    """Matches the allocation events of one instant with its actions."""
    open_events = [int(event) for event in here]
    for agrees in (_totals_agree, _changes_agree, _devices_agree):
        for place in places:
            if matched[place] != ABSENT:
                continue
            found = next(
                (event for event in open_events if agrees(actions, int(place), allocations, event)),
                None,
            )
            if found is not None:
                matched[place] = found
                open_events.remove(found)


def _devices_agree(actions: Actions, place: int, allocations: AllocationEvents, event: int) -> bool:
    return bool(actions.device[place] == allocations.device[event])


def _changes_agree(actions: Actions, place: int, allocations: AllocationEvents, event: int) -> bool:
    size, kind = int(allocations.size[event]), int(allocations.kind[event])
    change = int(actions.change[place])
    if change == UNKNOWN:
        fits = kind != ACTIVE_RELEASED and int(allocations.allocated[event]) == int(actions.allocated[place])
    else:
        fits = change == size if kind == ALLOC else change == -size or (kind == RELEASED and change == 0)
    return fits and _devices_agree(actions, place, allocations, event)


def _totals_agree(actions: Actions, place: int, allocations: AllocationEvents, event: int) -> bool:
    stated = int(allocations.allocated[event])
    return (
        stated != UNKNOWN
        and stated == int(actions.allocated[place])
        and _changes_agree(actions, place, allocations, event)
    )
