"""How fast a figure grows from step to step, and how sure that is. Pure functions on numpy arrays.

The slope is Theil and Sen's: the median of the slopes between all pairs of steps, which a few odd steps do
not move. Its interval is Sen's, from ranks alone: with the variance n(n-1)(2n+5)/18 of Kendall's score, so
that 95 in 100 such intervals hold the true slope, whatever the noise is, where it is independent. Steps of
the beginning are left out: caches and optimizer states are made there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

WARM_UP_SHARE: Final = 0.2
WARM_UP_LEAST: Final = 2
"""Steps left out at the beginning: so great a part of all, and no fewer."""
STEPS_LEAST: Final = 8
"""Steps that must be left: below that an interval says nothing."""
POINTS_MAX: Final = 120
"""Of a rank; where there are more, neighbours are pooled by their medians: 7,140 slopes a rank."""
NORMAL_95: Final = 1.959964
METHOD: Final = (
    "Theil-Sen: the median of the slopes between all pairs of steps; 95 % interval from ranks (Sen 1968); "
    "the first fifth of the steps, two at least, is left out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Of one rank, in bytes a step."""

    slope: float
    low: float
    high: float
    num_steps: int
    """Points that it was taken from."""
    level: float
    """The line through the highest point, at the last step: what a step reaches now, with odd steps."""

    @property
    def is_sure(self) -> bool:
        """Whether the figure grows: the whole interval is above zero."""
        return self.low > 0


def warm_up_end(steps: NDArray[np.int64]) -> int:
    """The first step that counts, of ascending steps."""
    first, last = int(steps[0]), int(steps[-1])
    return first + max(WARM_UP_LEAST, int(np.ceil((last - first + 1) * WARM_UP_SHARE)))


def growth_of(steps: NDArray[np.int64], values: NDArray[np.int64]) -> Growth | None:
    """The growth of a figure of ascending steps; None where there are too few."""
    if len(steps) < STEPS_LEAST:
        return None
    counts = steps >= warm_up_end(steps)
    steps, values = steps[counts], values[counts]
    if len(steps) < STEPS_LEAST:
        return None
    x, y = pooled(steps), pooled(values)
    slope, low, high = theil_sen(x, y)
    level = float(np.max(values + slope * (steps[-1] - steps)))
    return Growth(slope=slope, low=low, high=high, num_steps=len(x), level=level)


def pooled(values: NDArray[np.int64], most: int = POINTS_MAX) -> NDArray[np.float64]:
    """At most so many values: medians of neighbours, as many each but for the last."""
    size = -(-len(values) // most)
    if size == 1:
        return values.astype(np.float64)
    whole = len(values) // size * size
    medians = np.median(values[:whole].reshape(-1, size), axis=1)
    return medians if whole == len(values) else np.append(medians, np.median(values[whole:]))


def theil_sen(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float]:
    """The slope of y over ascending x, and the ends of its 95 % interval."""
    first, second = np.triu_indices(len(x), 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    n, pairs = len(x), len(slopes)
    spread = NORMAL_95 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(round((pairs - spread) / 2) - 1, 0)
    high = min(round((pairs + spread) / 2), pairs - 1)
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])
