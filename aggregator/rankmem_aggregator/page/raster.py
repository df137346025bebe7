"""Rectangles as a raster: how much of each pixel they cover, exact up to the last rounding.

Stage: page, in the thread of a request. In: rectangles in pixels, as arrays; out: matrices of numbers from 0
to 255. What is smaller than a pixel is summed into it, so nothing is lost however many there are. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

FULL: Final = 255
"""Of a pixel that is covered from edge to edge."""
SEEN_LEAST: Final = 1e-9
"""A pixel of which more than this is covered is at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangles:
    """Rectangles of a group, in pixels from the top left corner; begin ≤ end."""

    x_begin: Array
    x_end: Array
    y_begin: Array
    y_end: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Raster:
    """Pixels, line by line from the top: arrays of (height, width), uint8."""

    shares: Array
    """How much of each is covered: 0 to 255."""
    groups: Array
    """The group that covers most of it, by its place in the list; 0 also where nothing does."""


def coverage(rectangles: Rectangles, width: int, height: int) -> Array:
    """The covered part of each pixel, summed over the rectangles; float64 of (height, width).

    A rectangle covers ``x(i) * y(j)`` of the pixel (i, j), and both are running sums of four numbers: the
    part of the pixel behind the begin, the rest one further on, and the same of the end, negative. So each
    rectangle is sixteen numbers, and two running sums make the raster.
    """
    columns, x_weights = _edges(rectangles.x_begin, rectangles.x_end, width)
    rows, y_weights = _edges(rectangles.y_begin, rectangles.y_end, height)
    wide, high = width + 2, height + 2
    corners = (rows[:, None] * wide + columns[None]).ravel()
    weights = (y_weights[:, None] * x_weights[None]).ravel()
    found = np.bincount(corners, weights=weights, minlength=wide * high)
    sums: Array = found.reshape(high, wide).cumsum(axis=0).cumsum(axis=1)
    return sums[:height, :width]


def raster_of(groups: Sequence[Rectangles], width: int, height: int) -> Raster:
    """The raster of several groups of rectangles that do not overlap."""
    total = np.zeros((height, width))
    most = np.zeros((height, width))
    group = np.zeros((height, width), np.uint8)
    for number, rectangles in enumerate(groups):
        if not len(rectangles.x_begin):
            continue
        covered = coverage(rectangles, width, height)
        total += covered
        ahead = covered > most
        group[ahead] = number
        np.maximum(most, covered, out=most)
    shares = np.clip(np.rint(total * FULL), 0, FULL)
    shares[(shares == 0) & (total > SEEN_LEAST)] = 1
    return Raster(shares=shares.astype(np.uint8), groups=group)


def _edges(begin: Array, end: Array, size: int) -> tuple[Array, Array]:
    """Places and weights, four a rectangle, of which its extent along an axis is the running sum."""
    places, weights = [], []
    for edge, sign in ((begin, 1.0), (end, -1.0)):
        inside = np.clip(edge.astype(np.float64), 0, size)
        place = np.floor(inside).astype(np.int64)
        behind = inside - place
        places += [place, place + 1]
        weights += [sign * (1 - behind), sign * behind]
    return np.array(places), np.array(weights)
