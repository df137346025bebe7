"""Why a request failed, by replays: of what came before it and of the request, on the device as it was then.

Stage: insights. In: a :class:`~rankmem_aggregator.insights.lives.Trace`, one of its failed requests, and what
the device gave. Out: :class:`Tried`, one for each setting of the allocator. The state at the failure alone
(room in sum, but not in a row) does not tell: what another setting would have done depends on all that came
before (tests/bench/insights_oom.py has both).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankmem_aggregator.insights.lives import FailedRequest, Op, Trace
from rankmem_aggregator.insights.packing import intervals
from rankmem_aggregator.insights.replays import needed_bytes, run
from rankmem_aggregator.insights.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the device would have given the allocator when a request failed; bytes."""

    low_bytes: int
    high_bytes: int
    before_bytes: int
    """What it had given at most until then: more, where other processes have taken their part since."""

    @property
    def is_known(self) -> bool:
        """Whether it is one figure."""
        return self.low_bytes == self.high_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one setting would have done."""

    settings: Settings
    is_current: bool
    runs: bool | None
    """Whether the request would have found room; None where that depends on how much the device gave."""


def capacity_of(trace: Trace, failed: FailedRequest, device_free_bytes: int | None) -> Capacity:
    """What the device would have given: what the allocator held, and what was free on the device.

    Where more was free than the request needed, or where that is not known, something else stopped it: then
    only bounds are known.
    """
    held = trace.reserved[failed.place - 1] if failed.place else trace.reserved_at_start
    before = max(max(trace.reserved[: failed.place], default=0), trace.reserved_at_start)
    wanted = trace.settings.segment_bytes(failed.block_bytes)
    if trace.settings.expandable_segments:
        wanted = failed.block_bytes
    if device_free_bytes is not None and device_free_bytes < wanted:
        low = high = held + device_free_bytes
    else:
        low, high = held, held + wanted - 1
    return Capacity(low_bytes=low, high_bytes=high, before_bytes=max(before, high))


def until(trace: Trace, failed: FailedRequest) -> Trace:
    """What the allocator was asked up to a failed request, which comes last."""
    end = failed.place
    number = trace.num_older + trace.ops[:end].count(Op.ALLOC)
    requested = max(failed.block_bytes - trace.settings.extra_bytes, 1)
    held = trace.reserved[end - 1] if end else trace.reserved_at_start
    return replace(
        trace,
        ops=[*trace.ops[:end], Op.ALLOC],
        block=[*trace.block[:end], number],
        requested=[*trace.requested[:end], requested],
        group=[*trace.group[:end], failed.group],
        address=[*trace.address[:end], 0],
        reserved=[*trace.reserved[:end], held],
        failures=[],
    )


def is_reproduced(asked: Trace, capacity: Capacity) -> bool:
    """Whether the model, under the recording's own settings and from its own state, fails just there."""
    return all(
        _runs(asked, asked.settings, capacity.before_bytes, bound, from_state=True) == len(asked.ops) - 1
        for bound in {capacity.low_bytes, capacity.high_bytes}
    )


def tried(asked: Trace, capacity: Capacity, settings: Sequence[Settings]) -> list[Tried]:
    """What each of these settings would have done; those of the recording come first.

    Args:
        asked: of :func:`until`.
        capacity: what the device gave.
        settings: further ones.
    """
    found = []
    for each in dict.fromkeys((asked.settings, *settings)):
        is_current = each == asked.settings
        ends = {
            _runs(asked, each, capacity.before_bytes, bound, from_state=is_current) is None
            for bound in {capacity.low_bytes, capacity.high_bytes}
        }
        runs = ends.pop() if len(ends) == 1 else None
        found.append(Tried(settings=each, is_current=is_current, runs=runs))
    return found


def needed(asked: Trace, each: Tried, capacity: Capacity) -> int:
    """The smallest device on which the request finds room under a setting, within 16 MiB.

    At most the present one where it found room there, more than that where it did not.
    """
    least = needed_bytes(asked, each.settings)
    if each.runs:
        return min(least, capacity.low_bytes)
    return least if each.runs is None else max(least, capacity.high_bytes + 1)


def _runs(asked: Trace, settings: Settings, before: int, bound: int, *, from_state: bool) -> int | None:
    """The op that found no room; None where all did."""
    small = replace(settings, capacity_bytes=before)
    return run(asked, small, from_state=from_state, last_capacity_bytes=bound).failed_at


def alive_bytes(asked: Trace) -> int:
    """The bytes of blocks alive with the last request: less no setting and no placement can do with."""
    lives = intervals(asked, asked.settings.changed(""))
    last = len(asked.ops)
    is_alive = (lives[:, 0] <= last) & (lives[:, 1] > last)
    divisions = asked.settings.roundup_power2_divisions
    rounding = asked.requested[-1] // divisions if divisions > 1 else 0
    return int(np.sum(lives[is_alive, 2])) - rounding
