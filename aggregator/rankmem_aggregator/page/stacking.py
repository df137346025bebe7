"""Blocks stacked by age over a range of a log: where each lay at each instant, and how high the others stood.

Stage: page, in the thread of a request. In: lives of blocks as arrays, in the order of their allocation; out:
for the largest of them pieces of constant height above the ground, and for all others together the band on
top. When a block is freed, all younger ones sink by its size: so a block is as many pieces as older blocks
were freed during its life, and there are as many blocks as make the pieces that may be drawn. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

CANDIDATES_MAX: Final = 1500
"""Blocks that may be drawn one by one: all pairs of them are compared, in 0.1 s. A picture is a few hundred
pixels high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Blocks on top of one another."""

    chosen: Array
    """The blocks that are drawn one by one, in the order of their allocation: places in the input."""
    first: Array
    """For each of them the place of its first piece; one more at the end."""
    x: Array
    """Begin of each piece; it ends where the block's next one begins, the last with the block."""
    y: Array
    """Bytes below it."""
    rest_x: Array
    """Instants at which the band of the others changes, and one more: the end."""
    rest_y: Array
    """Bytes below the band from each instant on."""
    rest_bytes: Array
    """Its height."""
    highest_bytes: int
    """Of all together."""


def stacked(begin: Array, end: Array, size_bytes: Array, *, pieces_max: int) -> Stack:
    """The blocks by age, the oldest at the bottom.

    Args:
        begin, end: life of each, cut to the range; begin < end, and begin does not decrease.
        size_bytes: of each.
        pieces_max: to be drawn at most.
    """
    area = size_bytes.astype(np.float64) * (end - begin)
    by_area = np.argsort(-area, kind="stable")[:CANDIDATES_MAX]
    chosen, freed, sinking = _as_many(begin, end, by_area, pieces_max)
    first, x, y = _pieces(begin[chosen], end[chosen], size_bytes[chosen], freed, sinking)
    is_rest = np.ones(len(begin), bool)
    is_rest[chosen] = False
    times, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
    below = _course(place, len(times), np.where(is_rest, 0, size_bytes))
    rest = _course(place, len(times), np.where(is_rest, size_bytes, 0))
    return Stack(
        chosen=chosen,
        first=first,
        x=x,
        y=y,
        rest_x=times,
        rest_y=below,
        rest_bytes=rest,
        highest_bytes=int((below + rest).max(initial=0)),
    )


def _sinks(begin: Array, end: Array) -> Array:
    """Matrix over blocks in the order of their allocation: does the freeing of one (row) let another sink?"""
    older: Array = np.triu(np.ones((len(begin), len(begin)), bool), 1)
    older &= (end[:, None] > begin[None, :]) & (end[:, None] < end[None, :])
    return older


def _as_many(begin: Array, end: Array, by_area: Array, pieces_max: int) -> tuple[Array, Array, Array]:
    """The largest blocks whose pieces are not too many, in the order of their allocation.

    Also pairs of places among them: the freeing of the first lets the second sink.
    """
    order = np.sort(by_area)
    place = np.empty(len(begin), np.int64)
    place[by_area] = np.arange(len(by_area))
    place = place[order]
    sinks = _sinks(begin[order], end[order])
    upper, lower = np.nonzero(sinks)
    made = np.bincount(np.maximum(place[upper], place[lower]), minlength=len(order)) + 1
    is_chosen = place < int(np.searchsorted(np.cumsum(made), pieces_max, side="right"))
    both = is_chosen[upper] & is_chosen[lower]
    among = np.cumsum(is_chosen) - 1
    return order[is_chosen], among[upper[both]], among[lower[both]]


def _pieces(
    begin: Array, end: Array, size_bytes: Array, freed: Array, sinking: Array
) -> tuple[Array, Array, Array]:
    """Of blocks in the order of their allocation: first pieces, begins of pieces, bytes below."""
    number = np.arange(len(begin))
    by_end = np.argsort(end, kind="stable")
    gone = np.concatenate([[0], np.cumsum(size_bytes[by_end])])
    # Below a new block lies what was made before it, less what was freed until then.
    ground = np.cumsum(size_bytes) - size_bytes - gone[np.searchsorted(end[by_end], begin, side="right")]
    owner = np.concatenate([number, sinking])
    x = np.concatenate([begin, end[freed]])
    change = np.concatenate([ground, -size_bytes[freed]])
    order = np.lexsort((x, owner))
    owner, x, change = owner[order], x[order], change[order]
    first = np.searchsorted(owner, np.arange(len(begin) + 1))
    summed = np.concatenate([[0], np.cumsum(change)])
    return first, x, summed[1:] - summed[first[owner]]


def _course(place: Array, num_times: int, size_bytes: Array) -> Array:
    """The bytes from each instant on; blocks come, then go at these places among the instants."""
    change = np.zeros(num_times, np.int64)
    np.add.at(change, place, np.concatenate([size_bytes, -size_bytes]))
    return np.cumsum(change)
