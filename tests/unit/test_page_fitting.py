"""Does a device have room, and for how many steps: what follows from what leaks and from its size."""

from __future__ import annotations

from typing import Any

import pytest

from rankmem_aggregator.insights.capacity import usable_bytes, usable_on
from rankmem_aggregator.page.fitting import Held, fit_of

GIB = 1 << 30
MIB = 1 << 20
SECOND = 1_000_000_000


def held(**known: Any) -> Held:
    given: dict[str, Any] = {
        "device_type": "cuda",
        "peak_bytes": 8 * GIB,
        "reserved_peak_bytes": 10 * GIB,
        "beyond_bytes": GIB,
        "size_bytes": 16 * GIB,
        "step_ns": 2 * SECOND,
        "leaking": None,
    }
    return Held(**{**given, **known})


def leaking(rate: float, low: float, high: float, peak_bytes: int = 8 * GIB) -> dict[str, Any]:
    rates = {"bytes_per_step": rate, "low_bytes_per_step": low, "high_bytes_per_step": high}
    return {**rates, "peak_bytes": peak_bytes}


def test_usable_is_what_insights_say_and_all_of_the_host() -> None:
    for size, beyond in ((16 * GIB, GIB), (80 * GIB, None), (GIB, 2 * GIB)):
        known = held(size_bytes=size, beyond_bytes=beyond)
        assert fit_of(known).usable_bytes == usable_bytes(size, beyond)
    assert usable_bytes(16 * GIB, GIB) == 15 * GIB - 256 * MIB
    assert fit_of(held(device_type="cpu", beyond_bytes=None)).usable_bytes == 16 * GIB
    assert usable_on("cpu", 16 * GIB, None) == 16 * GIB
    assert fit_of(held(size_bytes=None)).usable_bytes is None


def test_room_is_told_at_requested_and_at_reserved() -> None:
    fit = fit_of(held())
    assert fit.left_bytes == 7 * GIB - 256 * MIB
    assert fit.left_reserved_bytes == 5 * GIB - 256 * MIB
    assert (fit.verdict, fit.steps_left) == ("fits", None)
    assert fit_of(held(size_bytes=11 * GIB)).verdict == "tight"
    short = fit_of(held(size_bytes=9 * GIB))
    assert (short.verdict, short.left_bytes) == ("short", -256 * MIB)
    assert fit_of(held(size_bytes=None)).verdict == "unknown"
    cpu = fit_of(held(reserved_peak_bytes=None, beyond_bytes=None))
    assert (cpu.verdict, cpu.left_reserved_bytes) == ("fits", None)


def test_steps_to_full_are_whole_ones_with_the_range_of_the_rate() -> None:
    fit = fit_of(held(leaking=leaking(512.0 * MIB, 256.0 * MIB, 1.0 * GIB)))
    room = 7 * GIB - 256 * MIB  # 13.5 steps of 512 MiB
    assert (fit.steps_left, fit.steps_left_low, fit.steps_left_high) == (13, 6, 27)
    assert fit.steps_left_reserved == (room - 2 * GIB) // (512 * MIB)
    assert fit.time_left_ns == 26 * SECOND
    assert fit_of(held(leaking=leaking(512.0 * MIB, 0.0, 1.0 * GIB))).steps_left_high is None
    assert fit_of(held(leaking=leaking(512.0 * MIB, 1.0, 1.0 * GIB), step_ns=None)).time_left_ns is None


@pytest.mark.parametrize("peak_bytes", [15 * GIB, 20 * GIB])
def test_what_is_full_has_no_step_left(peak_bytes: int) -> None:
    assert fit_of(held(leaking=leaking(MIB, 1, MIB, peak_bytes))).steps_left == 0
