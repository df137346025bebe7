"""How much two series of steps differ at equal input, and how far that may be off.

Stage: query; pure functions over numbers. In: of each side a figure of each step, and what the model was
given in it. Out: :class:`Compared`. Steps with the very same inputs on both sides are compared with each
other where there are enough; else each side gets its own Theil-Sen line over the sizes of its inputs, of the
steps whose inputs lie where those of both do or next to it, and the lines are compared there.
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
NEAR_LEAST: Final = 8
"""Steps that a line takes at least: those nearest to the range of both where fewer lie in it. A line through
all would be off where memory grows with the square of a length and the ranges differ."""
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

    sizes: Numbers
    """Bytes or elements, of both sides the same."""
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
    unclear: str = ""
    """Why the verdict may be unclear, where that is not the error."""


def some_steps(count: int, most: int = STEPS_MAX) -> NDArray[np.int64]:
    """Places of at most so many steps, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def overlap(base: Numbers, head: Numbers) -> tuple[float, float]:
    """The range in which inputs of both sides may lie; its first end is higher where there is none."""
    return float(max(base.min(), head.min())), float(min(base.max(), head.max()))


def equal_input(base: Numbers, head: Numbers) -> float | None:
    """The size of the input at which both sides are compared: the median of those that lie in both ranges.

    None where the ranges do not overlap.
    """
    low, high = overlap(base, head)
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
    at = equal_input(base.sizes, head.sizes)
    if at is None:
        raise ValueError("the inputs of both sides do not overlap")
    both = overlap(base.sizes, head.sizes)
    base_at, base_error = _line_at(base.sizes, base_values, at, both)
    head_at, head_error = _line_at(head.sizes, head_values, at, both)
    return Compared(base=base_at, head=head_at, error=float(np.hypot(base_error, head_error)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSteps:
    """The steps of a side whose inputs lie in the range of both."""

    values: Numbers
    """The figure of each, as at equal input."""
    places: NDArray[np.int64]
    """Of them among all steps of the side."""
    spread: float
    """Of single steps: a standard deviation."""


def single_steps(
    base: Side, base_values: Numbers, head: Side, head_values: Numbers
) -> tuple[SingleSteps, SingleSteps]:
    """The steps of both sides one by one, at equal input: what their inputs explain is taken off.

    Args:
        base_values, head_values: the figure in each step, of sides whose ranges overlap.
    """
    at = equal_input(base.sizes, head.sizes)
    if at is None:
        raise ValueError("the inputs of both sides do not overlap")
    low, high = overlap(base.sizes, head.sizes)
    found = []
    for side, values in ((base, base_values), (head, head_values)):
        places = np.flatnonzero((side.sizes >= low) & (side.sizes <= high))
        near = _near(side.sizes, at, (low, high))
        start, slope = _line(side.sizes[near], values[near])
        residuals = values[places] - start - slope * side.sizes[places]
        spread = OF_SPREAD * float(np.median(np.abs(residuals))) if len(places) else 0.0
        found.append(SingleSteps(values=start + slope * at + residuals, places=places, spread=spread))
    return found[0], found[1]


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


def _line_at(x: Numbers, y: Numbers, at: float, both: tuple[float, float]) -> tuple[float, float]:
    """A Theil-Sen line's value at a place in the range of both sides, and its standard error."""
    near = _near(x, at, both)
    x, y = x[near], y[near]
    start, slope = _line(x, y)
    lever = np.sqrt(1 + (at - x.mean()) ** 2 / x.var()) if np.ptp(x) else 1.0
    return start + slope * at, _error(y - start - slope * x) * float(lever)


def _near(x: Numbers, at: float, both: tuple[float, float]) -> NDArray[np.int64]:
    """Places of the steps in the range of both, and of those next to it while these are few or all on one
    side of the input that is compared; of many some."""
    distance = np.maximum(np.maximum(both[0] - x, x - both[1]), 0)
    order = np.argsort(distance, kind="stable")
    nearest = x[order]
    is_around = (np.minimum.accumulate(nearest) <= at) & (np.maximum.accumulate(nearest) >= at)
    least = max(NEAR_LEAST, int(np.argmax(is_around)) + 1)
    furthest = distance[order[min(least, len(x)) - 1]]
    found = np.flatnonzero(distance <= furthest)
    return found[some_steps(len(found))]


def _line(x: Numbers, y: Numbers) -> tuple[float, float]:
    """A Theil-Sen line: its value at 0, and its slope."""
    if np.ptp(x) == 0:
        return float(np.median(y)), 0.0
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    slope = float(np.median((y[second] - y[first])[run != 0] / run[run != 0]))
    return float(np.median(y - slope * x)), slope


def _error(residuals: Numbers) -> float:
    """The standard error of a middle of values with these residuals."""
    sizes = np.abs(residuals)
    spread = sizes.max() if len(sizes) < FEW else OF_SPREAD * np.median(sizes)
    return float(OF_MEDIAN * spread / np.sqrt(max(1, len(sizes) - 2)))  # a line has taken two
