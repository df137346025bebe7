"""How much two series of steps differ at equal input, and how far that may be off.

Stage: query; pure functions over numbers. In: of each side a figure of each step, and what the model was
given in it. Out: :class:`Compared`. Steps with the very same inputs on both sides are compared with each
other where there are enough; else each side gets its own Theil-Sen line over the bytes of its inputs, and the
lines are compared where the inputs of both lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

SAME_LEAST: Final = 8
"""Steps of each side whose inputs both sides have, from which on these alone are compared."""
FEW: Final = 12
"""Below so many steps the largest residual stands for the spread: the median of few is often 0."""
STEPS_MAX: Final = 240
"""Of a side, evenly spaced: a line takes all pairs."""
OF_MEDIAN: Final = 1.2533
"""The standard error of a median of normal noise, by that of a mean."""
OF_SPREAD: Final = 1.4826
"""The standard deviation of normal noise, by its median absolute deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What the model was given in each step of a side."""

    bytes: Numbers
    names: Sequence[str | None]
    """The same for the same inputs; None where they are not known in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A figure of both sides at equal input."""

    base: float
    head: float
    error: float
    """Standard error of head - base."""

    @property
    def difference(self) -> float:
        """Of head beyond base."""
        return self.head - self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A figure of a rank."""

    what: str
    rank: int
    device: str
    figure: Compared
    limit: float
    verdict: str | None


def some_steps(count: int, most: int = STEPS_MAX) -> NDArray[np.int64]:
    """Places of at most so many steps, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def equal_input(base: Numbers, head: Numbers) -> float | None:
    """The input, in bytes, at which both sides are compared: the median of those that lie in both ranges.

    None where the ranges do not overlap.
    """
    low, high = max(base.min(), head.min()), min(base.max(), head.max())
    if low > high:
        return None
    both = np.concatenate([base, head])
    return float(np.median(both[(both >= low) & (both <= high)]))


def compared(base: Side, base_values: Numbers, head: Side, head_values: Numbers) -> Compared:
    """A figure of the steps of both sides at equal input, whose ranges overlap.

    Args:
        base_values, head_values: the figure in each step.
    """
    same = _with_same_inputs(base, base_values, head, head_values)
    if same is not None:
        return same
    at = equal_input(base.bytes, head.bytes)
    if at is None:
        raise ValueError("the inputs of both sides do not overlap")
    base_at, base_error = _line_at(base.bytes, base_values, at)
    head_at, head_error = _line_at(head.bytes, head_values, at)
    return Compared(base=base_at, head=head_at, error=float(np.hypot(base_error, head_error)))


def _with_same_inputs(base: Side, base_values: Numbers, head: Side, head_values: Numbers) -> Compared | None:
    """The steps whose inputs the other side has, too; None where they are few."""
    both = {name for name in base.names if name is not None} & set(head.names)
    in_base = [place for place, name in enumerate(base.names) if name in both]
    in_head = [place for place, name in enumerate(head.names) if name in both]
    if min(len(in_base), len(in_head)) < SAME_LEAST:
        return None
    usual: dict[str | None, float] = {}
    scatter: list[Numbers] = []
    for name in both:
        own = base_values[[place for place in in_base if base.names[place] == name]]
        usual[name] = float(np.median(own))
        scatter.append(own - usual[name])
    expected = np.array([usual[head.names[place]] for place in in_head])
    differences = head_values[in_head] - expected
    middle, difference = float(np.median(expected)), float(np.median(differences))
    errors = (_error(np.concatenate(scatter)), _error(differences - difference))
    return Compared(base=middle, head=middle + difference, error=float(np.hypot(*errors)))


def _line_at(x: Numbers, y: Numbers, at: float) -> tuple[float, float]:
    """A Theil-Sen line's value at a place, and its standard error."""
    if np.ptp(x) == 0:
        middle = float(np.median(y))
        return middle, _error(y - middle)
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    slope = float(np.median((y[second] - y[first])[run != 0] / run[run != 0]))
    start = float(np.median(y - slope * x))
    lever = np.sqrt(1 + (at - x.mean()) ** 2 / x.var())
    return start + slope * at, _error(y - start - slope * x) * float(lever)


def _error(residuals: Numbers) -> float:
    """The standard error of a middle of values with these residuals."""
    sizes = np.abs(residuals)
    spread = sizes.max() if len(sizes) < FEW else OF_SPREAD * np.median(sizes)
    return float(OF_MEDIAN * spread / np.sqrt(max(1, len(sizes) - 2)))  # a line has taken two
