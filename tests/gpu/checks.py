"""What a check is, and what it is given.

Stage: outside the way of the data. A check is a function that runs in a process of its own and yields what it
found; ``runner`` starts it. Modules of stages import torch and the product within their checks alone, so that
the process that starts them stays small and outlives what they break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One thing that a check looked at."""

    what: str
    ok: bool | None
    """None: a figure without a bound, or something that could not be tried."""
    measured: Any
    expected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a check runs."""

    device: str
    """``cuda``, or ``cpu``: a rehearsal with small models, where nothing of CUDA is judged."""
    folder: Path
    """Its own, empty, deleted afterwards."""
    kept: Path
    """What lies there afterwards comes back in the results, packed."""

    @property
    def on_gpu(self) -> bool:
        """Whether this is no rehearsal."""
        return self.device == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a stage."""

    name: str
    look: Callable[[Place], Iterable[Found]]
    limit_s: float
    """It is ended after so long, and not begun with less than half of it left."""
    on_cpu: bool = True
    """Whether a rehearsal runs it."""
    alone: bool = False
    """Whether no other check may run beside it: it takes times, or looks at the whole device."""


def within(what: str, measured: float, at_most: float, unit: str = "") -> Found:
    """A figure with an upper bound; NaN is not within it."""
    text = f" {unit}".rstrip()
    return Found(
        what=what, ok=measured <= at_most, measured=f"{measured:.6g}{text}", expected=f"<= {at_most:g}{text}"
    )


def equal(what: str, measured: Any, expected: Any) -> Found:
    """Two values that must be the same."""
    return Found(what=what, ok=measured == expected, measured=measured, expected=str(expected))


def figure(what: str, measured: Any) -> Found:
    """A figure without a bound."""
    return Found(what=what, ok=None, measured=measured)


def not_tried(what: str, why: str) -> Found:
    """Something that could not be looked at here."""
    return Found(what=what, ok=None, measured=f"not tried: {why}")
