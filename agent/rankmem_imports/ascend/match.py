"""Which record of an allocator is which allocation or release of an operator's block.

Stage: readers, pure functions over arrays. A profiler folder tells the same actions twice: as totals after
each (MEMORY_RECORD, without a block) and as blocks with their times (OP_MEMORY). The two meet at the time.
Where several fall into one instant, the totals decide, then the change of the totals, then the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankmem_imports.ascend.rows import UNKNOWN
from rankmem_imports.ascend.stage import ACTIVE_RELEASED, ALLOC, RELEASED
from rankmem_ship.pairing.state import ABSENT, Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Deeds:
    """Allocations and releases of operators' blocks, by time."""

    time_ns: Array
    kind: Array
    """ALLOC, RELEASED, ACTIVE_RELEASED."""
    device: Array
    size: Array
    told: Array
    """Allocated bytes after it; UNKNOWN where not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Records of allocators, by time."""

    time_ns: Array
    device: Array
    allocated: Array
    change: Array
    """Of the component's bytes; UNKNOWN at its first record."""


def match(actions: Actions, deeds: Deeds) -> Array:
    """For each action the place of the deed that it is, or ABSENT."""
    matched = np.full(len(actions.time_ns), ABSENT)
    if not len(deeds.time_ns) or not len(actions.time_ns):
        return matched
    left = np.searchsorted(actions.time_ns, deeds.time_ns, "left")
    count = np.searchsorted(actions.time_ns, deeds.time_ns, "right") - left
    alone = np.ones(len(deeds.time_ns), np.bool_)
    same = deeds.time_ns[1:] == deeds.time_ns[:-1]
    alone[1:] &= ~same
    alone[:-1] &= ~same
    simple = np.flatnonzero(alone & (count == 1))
    simple = simple[actions.device[left[simple]] == deeds.device[simple]]
    matched[left[simple]] = simple
    crowded = np.flatnonzero((count > 1) | ((count == 1) & ~alone))
    for start in np.unique(left[crowded]):
        here = crowded[left[crowded] == start]
        _settle(actions, deeds, np.arange(start, start + int(count[here[0]])), here, matched)
    return matched


def _settle(actions: Actions, deeds: Deeds, places: Array, here: Array, matched: Array) -> None:
    """Matches the deeds of one instant with its actions."""
    open_deeds = [int(deed) for deed in here]
    for agrees in (_totals_agree, _changes_agree, _devices_agree):
        for place in places:
            if matched[place] != ABSENT:
                continue
            found = next((deed for deed in open_deeds if agrees(actions, int(place), deeds, deed)), None)
            if found is not None:
                matched[place] = found
                open_deeds.remove(found)


def _devices_agree(actions: Actions, place: int, deeds: Deeds, deed: int) -> bool:
    return bool(actions.device[place] == deeds.device[deed])


def _changes_agree(actions: Actions, place: int, deeds: Deeds, deed: int) -> bool:
    size, kind = int(deeds.size[deed]), int(deeds.kind[deed])
    change = int(actions.change[place])
    if change == UNKNOWN:
        fits = kind != ACTIVE_RELEASED and int(deeds.told[deed]) == int(actions.allocated[place])
    else:
        fits = change == size if kind == ALLOC else change == -size or (kind == RELEASED and change == 0)
    return fits and _devices_agree(actions, place, deeds, deed)


def _totals_agree(actions: Actions, place: int, deeds: Deeds, deed: int) -> bool:
    told = int(deeds.told[deed])
    return (
        told != UNKNOWN
        and told == int(actions.allocated[place])
        and _changes_agree(actions, place, deeds, deed)
    )
