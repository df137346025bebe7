"""Does a rank fit into a device of some size, and when is it full? Pure functions.

Definitions, which later answers about fitting share: usable is the size less what the process holds beyond
the allocator and less a margin, 1 % or 256 MiB, whichever is more. At requested: the bytes that the job asked
for, the least that it needs. At reserved: what the allocator held, which surely suffices; between the two it
depends on what the allocator gives back before it fails. Time to full: room above the line of the steps'
peaks, by their growth a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_aggregator.page.growth import STEPS_LEAST, Growth, growth_of

MARGIN_SHARE: Final = 0.01
MARGIN_LEAST_BYTES: Final = 256 << 20
STEPS_MAX: Final = 1 << 52
"""More steps than that are none that anyone will see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is known of a device of a rank."""

    peak_bytes: int
    reserved_peak_bytes: int | None
    beyond_bytes: int | None
    size_bytes: int | None
    """Of the device, or the one to try."""
    step_ns: int | None
    growth: Growth | None
    """Of the steps' peaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether it fits, and for how long."""

    usable_bytes: int | None
    left_bytes: int | None
    """At requested; below zero: so much is missing."""
    left_reserved_bytes: int | None
    verdict: str
    """fits; tight: at requested alone; short: not even then; unknown."""
    steps_left: int | None
    """Full steps until it fails; NULL where it does not surely grow, or its room is not known."""
    steps_left_low: int | None
    steps_left_high: int | None
    """With the ends of the slope's interval."""
    steps_left_reserved: int | None
    """At reserved: with what the allocator held beyond the requested bytes."""
    time_left_ns: int | None
    time_left_low_ns: int | None
    time_left_high_ns: int | None


def usable_of(size_bytes: int | None, beyond_bytes: int | None) -> int | None:
    """What the allocator can have of a device."""
    if size_bytes is None:
        return None
    return size_bytes - (beyond_bytes or 0) - margin_of(size_bytes)


def margin_of(size_bytes: int) -> int:
    """What is left free, so that small things beside the job do not end it."""
    return max(math.ceil(size_bytes * MARGIN_SHARE), MARGIN_LEAST_BYTES)


def fit_of(held: Held) -> Fit:
    """The answer for one device of a rank."""
    usable = usable_of(held.size_bytes, held.beyond_bytes)
    left = None if usable is None else usable - held.peak_bytes
    left_reserved = (
        None
        if usable is None or held.reserved_peak_bytes is None
        else usable - max(held.reserved_peak_bytes, held.peak_bytes)
    )
    steps: list[int | None] = [None, None, None, None]
    growth = held.growth
    if usable is not None and growth is not None and growth.is_sure:
        room = usable - growth.level
        steps = [_steps(room, slope) for slope in (growth.slope, growth.high, growth.low)]
        spare = None if left_reserved is None or left is None else left - left_reserved
        steps.append(None if spare is None else _steps(room - spare, growth.slope))
    times = [None if count is None or held.step_ns is None else count * held.step_ns for count in steps[:3]]
    return Fit(
        usable_bytes=usable,
        left_bytes=left,
        left_reserved_bytes=left_reserved,
        verdict=_verdict(left, left_reserved),
        steps_left=steps[0],
        steps_left_low=steps[1],
        steps_left_high=steps[2],
        steps_left_reserved=steps[3],
        time_left_ns=times[0],
        time_left_low_ns=times[1],
        time_left_high_ns=times[2],
    )


def growth_of_peaks(steps: list[int] | None, peaks: list[int] | None) -> Growth | None:
    """The growth of the peaks of steps; None where there are too few."""
    if steps is None or peaks is None or len(steps) < STEPS_LEAST:
        return None
    return growth_of(np.array(steps, np.int64), np.array(peaks, np.int64))


def _verdict(left: int | None, left_reserved: int | None) -> str:
    if left is None:
        return "unknown"
    if left < 0:
        return "short"
    return "tight" if left_reserved is not None and left_reserved < 0 else "fits"


def _steps(room: float, slope: float) -> int:
    return 0 if room < 0 else min(int(room // slope), STEPS_MAX)
