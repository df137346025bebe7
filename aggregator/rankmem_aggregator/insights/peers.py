"""Which ranks hold more or less than their peers. Pure functions on numpy arrays.

Stage: query. In: the bytes of each rank, and its coordinates. Out: what explains the differences, and the
ranks and levels that it leaves unexplained. Ranks differ by design: a pipeline's first stage holds more
activations than its last. So coordinates explain first, by medians, and only what is left can stand out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

EXPLAINS_LEAST: Final = 0.05
"""A coordinate counts that explains so much of the variance that is left, corrected for its levels."""
LEVEL_RANKS_LEAST: Final = 4
"""A level of three ranks would explain itself."""
CELL_RANKS_LEAST: Final = 5
"""With so many peers the expected bytes are their median; with fewer, those of all coordinates added up."""
SCALE_RANKS_LEAST: Final = 12
"""A level with so many ranks has a noise of its own: stages of a pipeline differ in it."""
CLIPPED: Final = (2, 98)
"""Percentiles beyond which a rank does not decide what explains."""
DEVIATIONS: Final = 5.0
"""A rank stands out beyond so many deviations of its peers,"""
FLOOR_BYTES: Final = 64 << 20
FLOOR_SHARE: Final = 0.01
"""and beyond both of these: its size."""
FEW_RANKS: Final = 10
SCALE_SHARE_LEAST: Final = 0.002
FOLD_SHARE: Final = 0.5
FOLD_RANKS_LEAST: Final = 3
"""A level of which so many ranks stand out to one side stands out itself; a smaller one with all of its
ranks: two ranks of four may be two faults."""
AS_MUCH: Final = 0.02
WIDE_LEVELS: Final = 12
"""Of so many levels each can be compared with the others."""
NEAREST_PEERS: Final = 8
MAD_TO_SIGMA: Final = 1.4826
POLISH_ROUNDS: Final = 6
INFERRED_MAX: Final = 6
INFERRED_SIZE_MAX: Final = 64
"""Layouts that are tried without coordinates: stride and size divide the world."""

Bytes = NDArray[np.float64]
Labels = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value of a coordinate whose ranks together hold more or less than expected."""

    coordinate: str
    level: int
    """As in the labels given."""
    ranks: Labels
    """Their indices."""
    beyond: float
    """The median of what they hold beyond the expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What explains the differences, and what stands out of it."""

    shares: tuple[tuple[str, float], ...]
    """The coordinates that explain, with the part of the variance each takes away, the strongest first."""
    expected: Bytes
    """Of each rank, from its coordinates."""
    beyond: Bytes
    """What each rank holds beyond that and beyond the levels."""
    levels: tuple[Level, ...]
    ranks: Labels
    """The indices of the ranks that stand out alone, the furthest first."""
    cells: Labels
    """Which ranks are peers: the same in all coordinates that explain."""


def standing_of(
    totals: Bytes, coordinates: Mapping[str, Labels], groupings: Mapping[str, Labels] | None = None
) -> Standing:
    """Compares each rank with its peers.

    Args:
        totals: bytes of each rank.
        coordinates: what may explain differences: by name the level of each rank, from 0 without gaps.
        groupings: in the same form what may stand out as a whole: hosts, and see :func:`with_pairs`. Of two
            that fit equally the first is named.
    """
    used, shares = _explaining(totals, coordinates)
    strong = [labels for labels, (_, share) in zip(used, shares, strict=True) if share >= EXPLAINS_LEAST]
    cells, expected = _expected(totals, used, strong)
    beyond = totals - expected
    scale = _scale(totals, beyond, used)
    levels = _levels(beyond, _outside(totals, beyond, expected, scale), groupings or {})
    for level in levels:
        own = beyond[level.ranks]
        rest = own - level.beyond
        beyond[level.ranks] = np.where(np.abs(rest) < np.abs(own), rest, own)
    if levels:
        scale = _scale(totals, beyond, used)
    outside = np.nonzero(_outside(totals, beyond, expected, scale))[0]
    return Standing(
        shares=tuple(shares),
        expected=expected,
        beyond=beyond,
        levels=tuple(levels),
        ranks=outside[np.argsort(-np.abs(beyond[outside]), kind="stable")],
        cells=cells,
    )


def with_pairs(coordinates: Mapping[str, Labels]) -> dict[str, Labels]:
    """The coordinates and their pairs: the load of experts differs by group and stage."""
    pairs = {
        f"{one}, {other}": dense(coordinates[one] * (coordinates[other].max() + 1) + coordinates[other])
        for one, other in itertools.combinations(coordinates, 2)
    }
    return {**coordinates, **pairs}


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


def median_peer(totals: Bytes, standing: Standing, index: int, without: Labels) -> int | None:
    """The peer of a rank whose total is the median of its peers': against one rank differences add up.

    Where the rank has fewer than three peers, among the eight whose expected bytes are nearest to its own.

    Args:
        without: indices of ranks that are no peers, such as those of its own level.
    """
    may = np.ones(len(totals), bool)
    may[without] = may[index] = False
    peers = np.nonzero(may & (standing.cells == standing.cells[index]))[0]
    if len(peers) < LEVEL_RANKS_LEAST - 1:
        nearest = np.argsort(np.abs(standing.expected - standing.expected[index]), kind="stable")
        peers = nearest[may[nearest]][:NEAREST_PEERS]
    if not len(peers):
        return None
    own = totals[peers]
    return int(peers[np.argmin(np.abs(own - np.median(own)))])


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


def _explaining(
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


def _expected(totals: Bytes, used: list[Labels], strong: list[Labels]) -> tuple[Labels, Bytes]:
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


def _scale(totals: Bytes, beyond: Bytes, used: list[Labels]) -> Bytes:
    """The noise of each rank: that of its level of the strongest coordinate, where it has ranks enough."""
    least = max(SCALE_SHARE_LEAST * float(np.median(totals)), 1.0)
    whole = _widened(len(totals)) * float(np.median(np.abs(beyond - np.median(beyond))))
    scale = np.full(len(totals), max(whole, least))
    if used:
        labels = used[0]
        counts = np.bincount(labels)
        own = _widened(counts) * medians(np.abs(beyond - medians(beyond, labels)[labels]), labels)
        is_large = counts[labels] >= SCALE_RANKS_LEAST
        scale = np.where(is_large, np.maximum(own, least)[labels], scale)
    return scale


def _widened(counts: Any) -> Any:
    """From a median deviation to a standard one; more for few ranks: of 16 it is often far too low."""
    return MAD_TO_SIGMA * (1 + FEW_RANKS / counts)


def _outside(totals: Bytes, beyond: Bytes, expected: Bytes, scale: Bytes) -> NDArray[np.bool_]:
    least = np.maximum(FLOOR_BYTES, FLOOR_SHARE * expected)
    return (np.abs(beyond) > DEVIATIONS * scale) & (np.abs(beyond) > least)


def _levels(beyond: Bytes, outside: NDArray[np.bool_], groupings: Mapping[str, Labels]) -> list[Level]:
    """The levels of which half the ranks stand out to one side, the purest first, then the largest."""
    left = outside.copy()
    found: list[Level] = []
    while left.any():
        best: tuple[float, int] = (0.0, 0)
        top: tuple[str, int, float] | None = None
        for name, labels in groupings.items():
            sizes = np.bincount(labels)
            for sign in (1.0, -1.0):
                hits = np.bincount(labels, left & (beyond * sign > 0), minlength=len(sizes))
                folds = (hits >= FOLD_SHARE * sizes) & (hits >= np.minimum(FOLD_RANKS_LEAST, sizes))
                folds &= (hits >= 2) & (sizes < len(beyond))
                for level in np.nonzero(folds)[0]:
                    key = (float(hits[level] / sizes[level]), int(hits[level]))
                    if key > best:
                        best, top = key, (name, int(level), sign)
        if top is None:
            break
        name, number, sign = top
        ranks = np.nonzero(groupings[name] == number)[0]
        own = beyond[ranks]
        shift = float(np.median(own[(own * sign > 0) & outside[ranks]]))
        found.append(Level(coordinate=name, level=number, ranks=ranks, beyond=shift))
        left[ranks] = False
    return found
