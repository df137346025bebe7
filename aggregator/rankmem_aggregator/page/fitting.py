"""Does a rank fit into a device of some size, and when is it full? Pure functions.

What is usable, ``insights.capacity`` says, and what grows ``rankmem leaks``. At requested: the bytes that the
job asked for, the least that it needs. At reserved: what the allocator held, which surely suffices; between
the two it depends on what the allocator gives back before it fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rankmem_aggregator.insights.capacity import usable_on
from rankmem_aggregator.insights.leaks import RATES, steps_until_full

STEPS_MAX: Final = 1 << 52
"""More steps than that are none that anyone will see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is known of a device of a rank."""

    device_type: str
    peak_bytes: int
    reserved_peak_bytes: int | None
    beyond_bytes: int | None
    size_bytes: int | None
    """Of the device, or the one to try."""
    step_ns: int | None
    leaking: Mapping[str, Any] | None
    """What leaks on it: one of the devices in the figures of ``insights.leaks``."""


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
    """Steps until it is full; NULL where nothing leaks, or its room is not known."""
    steps_left_low: int | None
    steps_left_high: int | None
    """With the ends of the rate's interval; NULL beside a known one: perhaps never."""
    steps_left_reserved: int | None
    """At reserved: with what the allocator held beyond the requested bytes."""
    time_left_ns: int | None


def fit_of(held: Held) -> Fit:
    """The answer for one device of a rank."""
    size = held.size_bytes
    usable = None if size is None else usable_on(held.device_type, size, held.beyond_bytes)
    left = None if usable is None else usable - held.peak_bytes
    left_reserved = (
        None
        if usable is None or held.reserved_peak_bytes is None
        else usable - max(held.reserved_peak_bytes, held.peak_bytes)
    )
    spare = None if left is None or left_reserved is None else left - left_reserved
    steps = _steps(usable, held.leaking)
    full = None if usable is None or spare is None else _steps(usable - spare, held.leaking)
    return Fit(
        usable_bytes=usable,
        left_bytes=left,
        left_reserved_bytes=left_reserved,
        verdict=_verdict(left, left_reserved),
        steps_left=steps and steps[0],
        steps_left_low=steps and steps[1],
        steps_left_high=steps and steps[2],
        steps_left_reserved=full and full[0],
        time_left_ns=None if steps is None or held.step_ns is None else steps[0] * held.step_ns,
    )


def _verdict(left: int | None, left_reserved: int | None) -> str:
    if left is None:
        return "unknown"
    if left < 0:
        return "short"
    return "tight" if left_reserved is not None and left_reserved < 0 else "fits"


def _steps(usable: int | None, leaking: Mapping[str, Any] | None) -> tuple[int, int, int | None] | None:
    if usable is None or leaking is None:
        return None
    left, low, high = steps_until_full(usable, leaking["peak_bytes"], [leaking[name] for name in RATES])
    return min(left, STEPS_MAX), min(low, STEPS_MAX), None if high is None else min(high, STEPS_MAX)
