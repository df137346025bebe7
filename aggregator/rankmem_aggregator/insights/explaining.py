"""Which coordinates explain that ranks hold more or less than others. Pure functions on numpy arrays.

Stage: query. In: the bytes of each rank, and its coordinates. Out: the coordinates that explain, and the
bytes that each rank is expected to hold for them; what it holds beyond is for ``peers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

EXPLAINS_LEAST: Final = 0.05
"""A coordinate counts that explains so much of the variance that is left, corrected for its levels."""
LEVEL_RANKS_LEAST: Final = 4
"""A level of three ranks would explain itself."""
CELL_RANKS_LEAST: Final = 5
"""With so many peers the expected bytes are their median; with fewer, those of all coordinates added up."""
CLIPPED: Final = (2, 98)
"""Percentiles beyond which a rank does not decide what explains."""
DEVIATIONS: Final = 5.0
"""A rank stands out beyond so many deviations of its peers,"""
FLOOR_BYTES: Final = 64 << 20
FLOOR_SHARE: Final = 0.01
"""and beyond both of these: its size."""
AS_MUCH: Final = 0.02
WIDE_LEVELS: Final = 12
"""Of so many levels each can be compared with the others."""
MAD_TO_SIGMA: Final = 1.4826
POLISH_ROUNDS: Final = 6
INFERRED_MAX: Final = 6
INFERRED_SIZE_MAX: Final = 64
"""Layouts that are tried without coordinates: stride and size divide the world."""

Bytes = NDArray[np.float64]
Labels = NDArray[np.intp]


def explaining(
    totals: Bytes, coordinates: Mapping[str, Labels]
) -> tuple[list[Labels], list[tuple[str, float]]]:
    """The coordinates that explain, the strongest first, each on what those before it leave.

    Of those that explain about as much the one with the fewest levels: ``rank // 16 % 64`` explains whatever
    ``rank // 128 % 8`` does.
    """
    clipped = np.clip(totals, *np.percentile(totals, CLIPPED))
    rest = clipped - np.median(clipped)
    whole = float((rest**2).sum())
    waiting = {
        name: labels
        for name, labels in coordinates.items()
        if 1 < labels.max() + 1 <= len(totals) // LEVEL_RANKS_LEAST
    }
    used: list[Labels] = []
    shares: list[tuple[str, float]] = []
    while waiting and whole > 0:
        found = {name: explained(rest, labels) for name, labels in waiting.items()}
        if max(found.values()) < EXPLAINS_LEAST:
            break
        near = [name for name in found if found[name] >= max(max(found.values()) - AS_MUCH, EXPLAINS_LEAST)]
        name = min(near, key=lambda each: int(waiting[each].max()))
        labels = waiting.pop(name)
        after = rest - medians(rest, labels)[labels]
        shares.append((name, float((rest**2).sum() - (after**2).sum()) / whole))
        used.append(labels)
        rest = after
    return used, shares


def expected_bytes(totals: Bytes, used: list[Labels], strong: list[Labels]) -> tuple[Labels, Bytes]:
    """The cells of ranks that share all coordinates of design, and what each rank is expected to hold.

    A strong coordinate of few levels is the design: with its like it makes cells. Any other, replicas as a
    rule, adds to that: in cells of stage and replica a faulty host would be its own measure. Of many levels
    one that differs from the others as a faulty rank does from its peers is not expected.
    """
    design = [labels for labels in strong if labels.max() < WIDE_LEVELS]
    cells = np.zeros(len(totals), np.intp)
    for labels in design:
        cells = dense(cells * (labels.max() + 1) + labels)
    expected = np.full(len(totals), float(np.median(totals)))
    for _ in range(POLISH_ROUNDS):
        for labels in used:
            expected += _effects(totals - expected, labels, totals)[labels]
    is_full = np.bincount(cells)[cells] >= CELL_RANKS_LEAST
    rest = totals - expected
    return cells, expected + np.where(is_full, medians(rest, cells)[cells], 0.0)


def inferred(totals: Bytes, ranks: NDArray[np.int64], world_size: int) -> dict[str, Labels]:
    """Layouts that explain the differences of ranks whose coordinates are not known, by their names.

    Each is the label (rank // stride) % size: what a launcher that nests dimensions gives.
    """
    divisors = np.array([d for d in range(1, world_size + 1) if world_size % d == 0])
    clipped = np.clip(totals, *np.percentile(totals, CLIPPED))
    found = []
    for stride in divisors:
        for size in divisors[(divisors > 1) & (divisors <= INFERRED_SIZE_MAX)]:
            if stride * size > world_size:
                break
            share = explained(clipped, dense(ranks // stride % size))
            if share > EXPLAINS_LEAST:
                found.append((-round(share, 2), int(size), int(stride)))
    return {
        f"rank // {stride} % {size}": dense(ranks // stride % size)
        for _, size, stride in sorted(found)[:INFERRED_MAX]
    }


def explained(values: Bytes, labels: Labels) -> float:
    """The part of the variance that lies between the levels (eta squared), corrected for their number."""
    counts = np.bincount(labels)
    n, k = len(values), len(counts)
    if k < 2 or k > n // 2:
        return 0.0
    whole = float(((values - values.mean()) ** 2).sum())
    if whole == 0:
        return 0.0
    means = np.bincount(labels, values) / counts
    within = float(((values - means[labels]) ** 2).sum())
    return max(0.0, 1 - (within / (n - k)) / (whole / (n - 1)))


def dense(labels: NDArray[np.generic]) -> Labels:
    """The labels numbered from 0 without gaps."""
    numbered: Labels = np.unique(labels, return_inverse=True)[1].ravel()
    return numbered


def medians(values: Bytes, labels: Labels) -> Bytes:
    """The median of each level."""
    ordered = values[np.lexsort((values, labels))]
    counts = np.bincount(labels)
    starts = np.cumsum(counts) - counts
    middle: Bytes = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    return middle


def _effects(rest: Bytes, labels: Labels, totals: Bytes) -> Bytes:
    """What each level adds: the median of its ranks; of many levels without those that stand out."""
    effects = medians(rest, labels)
    if len(effects) <= WIDE_LEVELS:
        return effects
    usual = float(np.median(effects))
    scale = MAD_TO_SIGMA * float(np.median(np.abs(effects - usual)))
    least = max(FLOOR_BYTES, FLOOR_SHARE * float(np.median(totals)))
    is_odd = np.abs(effects - usual) > max(DEVIATIONS * scale, least)
    return np.where(is_odd, usual, effects)
