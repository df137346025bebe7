"""Curves of groups in buckets: the peak, its first instant, the last value. Arrays in, arrays out.

Stage: summaries, in the writer's thread; pure functions over arrays. A curve is what the blocks of one
group of one device hold after each change, in order of the log; several changes at one position of the log
count together, by what stands after the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BUCKET_POSITIONS: Final = 1024
"""Positions of a log in a bucket: a curve of a million has a thousand points, a step of a small model two or
three. 12 groups of a training make a row for each 90 positions, 1 % of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Columns of equal length, by curve and position."""

    curve: Array
    """Number of the curve."""
    seq_first: Array
    seq_last: Array
    peak_bytes: Array
    peak_seq: Array
    peak_ns: Array
    last_bytes: Array
    last_ns: Array


def buckets_of(curve: Array, seq: Array, time_ns: Array, change_bytes: Array, entry_bytes: Array) -> Buckets:
    """The buckets of curves that are given by their changes.

    Args:
        curve: of each change, a number from 0; in any order.
        seq: its position in the log, from -1; within a curve in ascending order.
        time_ns: likewise.
        change_bytes: what it adds.
        entry_bytes: of each curve, what it holds before its first change.
    """
    order = np.argsort(curve, kind="stable")
    curve, seq, time_ns = curve[order], seq[order], time_ns[order]
    total = np.cumsum(change_bytes[order])
    begins = _starts(curve)
    before = np.concatenate([[0], total])[begins]
    total = total + np.repeat(entry_bytes[curve[begins]] - before, _lengths(begins, len(curve)))
    # After the last change at a position the total is what is held there.
    is_last = np.ones(len(curve), np.bool_)
    is_last[:-1] = (curve[1:] != curve[:-1]) | (seq[1:] != seq[:-1])
    curve, seq, time_ns, total = curve[is_last], seq[is_last], time_ns[is_last], total[is_last]
    return _folded(curve, seq // BUCKET_POSITIONS, seq, time_ns, total)


def _folded(curve: Array, bucket: Array, seq: Array, time_ns: Array, total: Array) -> Buckets:
    """One row for each run of equal curve and bucket."""
    begins = _starts(curve, bucket)
    if not len(begins):
        empty = np.zeros(0, np.int64)
        return Buckets(**dict.fromkeys(Buckets.__dataclass_fields__, empty))
    lengths = _lengths(begins, len(curve))
    top = np.maximum.reduceat(total, begins)
    hits = np.flatnonzero(total == np.repeat(top, lengths))
    first_hit = hits[np.searchsorted(hits, begins)]
    ends = begins + lengths - 1
    return Buckets(
        curve=curve[begins],
        seq_first=seq[begins],
        seq_last=seq[ends],
        peak_bytes=top,
        peak_seq=seq[first_hit],
        peak_ns=time_ns[first_hit],
        last_bytes=total[ends],
        last_ns=time_ns[ends],
    )


def _starts(*columns: Array) -> Array:
    """Where a row differs from the one before in any column."""
    differs = np.ones(len(columns[0]), np.bool_)
    if len(differs):
        differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(differs)


def _lengths(begins: Array, count: int) -> Array:
    return np.diff(np.append(begins, count))
