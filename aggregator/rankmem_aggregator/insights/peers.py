"""Which ranks hold more or less than their peers. Pure functions on numpy arrays.

Stage: query. In: the bytes of each rank, and its coordinates. Out: what explains the differences, and the
ranks and levels that it leaves unexplained. Ranks differ by design: a pipeline's first stage holds more
activations than its last. So coordinates explain first (``explaining``), by medians, and only what is left
can stand out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankmem_aggregator.insights.explaining import (
    DEVIATIONS,
    EXPLAINS_LEAST,
    FLOOR_BYTES,
    FLOOR_SHARE,
    LEVEL_RANKS_LEAST,
    MAD_TO_SIGMA,
    Bytes,
    Labels,
    dense,
    expected_bytes,
    explaining,
    medians,
)

SCALE_RANKS_LEAST: Final = 12
"""A level with so many ranks has a noise of its own: stages of a pipeline differ in it."""
FEW_RANKS: Final = 10
SCALE_SHARE_LEAST: Final = 0.002
FOLD_SHARE: Final = 0.5
FOLD_RANKS_LEAST: Final = 3
"""A level of which so many ranks stand out to one side stands out itself; a smaller one with all of its
ranks: two ranks of four may be two faults."""
NEAREST_PEERS: Final = 8


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
    small: Labels
    """Those of ranks that vary as much from their peers, but by fewer than :data:`FLOOR_BYTES`, likewise."""
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
    used, shares = explaining(totals, coordinates)
    strong = [labels for labels, (_, share) in zip(used, shares, strict=True) if share >= EXPLAINS_LEAST]
    cells, expected = expected_bytes(totals, used, strong)
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
    varied = np.nonzero(_outside(totals, beyond, expected, scale, floor_bytes=0))[0]
    small = np.setdiff1d(varied, outside)
    return Standing(
        shares=tuple(shares),
        expected=expected,
        beyond=beyond,
        levels=tuple(levels),
        ranks=outside[np.argsort(-np.abs(beyond[outside]), kind="stable")],
        small=small[np.argsort(-np.abs(beyond[small]), kind="stable")],
        cells=cells,
    )


def with_pairs(coordinates: Mapping[str, Labels]) -> dict[str, Labels]:
    """The coordinates and their pairs: the load of experts differs by group and stage."""
    pairs = {
        f"{one}, {other}": dense(coordinates[one] * (coordinates[other].max() + 1) + coordinates[other])
        for one, other in itertools.combinations(coordinates, 2)
    }
    return {**coordinates, **pairs}


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


def _outside(
    totals: Bytes, beyond: Bytes, expected: Bytes, scale: Bytes, floor_bytes: int = FLOOR_BYTES
) -> NDArray[np.bool_]:
    least = np.maximum(floor_bytes, FLOOR_SHARE * expected)
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
