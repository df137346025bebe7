"""Courses of groups as stretches: highest, its first instant, last. Arrays in, arrays out.

Stage: summaries, in the writer's thread; pure functions over arrays. A course is what the blocks of one
group of one device hold after each change, in order of the log; several changes at one position of the log
count together, by what stands after the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STRETCH: Final = 1024
"""Positions of a log in a stretch: a curve of a million has a thousand points, a step of a small model two or
three. 12 groups of a training make a row for each 90 positions, 1 % of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Columns of equal length, by course and position."""

    course: Array
    """Number of the course."""
    seq_first: Array
    seq_last: Array
    peak_bytes: Array
    peak_seq: Array
    peak_ns: Array
    last_bytes: Array
    last_ns: Array


def stretches_of(
    course: Array, seq: Array, time_ns: Array, change_bytes: Array, entry_bytes: Array
) -> Stretches:
    """The stretches of courses told by their changes.

    Args:
        course: of each change, a number from 0; in any order.
        seq: its position in the log, from -1; within a course in ascending order.
        time_ns: likewise.
        change_bytes: what it adds.
        entry_bytes: of each course, what it holds before its first change.
    """
    order = np.argsort(course, kind="stable")
    course, seq, time_ns = course[order], seq[order], time_ns[order]
    total = np.cumsum(change_bytes[order])
    begins = _starts(course)
    before = np.concatenate([[0], total])[begins]
    total = total + np.repeat(entry_bytes[course[begins]] - before, _lengths(begins, len(course)))
    # Of the changes at one position the last one tells what stands there.
    tells = np.ones(len(course), np.bool_)
    tells[:-1] = (course[1:] != course[:-1]) | (seq[1:] != seq[:-1])
    course, seq, time_ns, total = course[tells], seq[tells], time_ns[tells], total[tells]
    return _folded(course, seq // STRETCH, seq, time_ns, total)


def _folded(course: Array, part: Array, seq: Array, time_ns: Array, total: Array) -> Stretches:
    """One row for each run of equal course and part."""
    begins = _starts(course, part)
    if not len(begins):
        empty = np.zeros(0, np.int64)
        return Stretches(**dict.fromkeys(Stretches.__dataclass_fields__, empty))
    lengths = _lengths(begins, len(course))
    top = np.maximum.reduceat(total, begins)
    hits = np.flatnonzero(total == np.repeat(top, lengths))
    first_hit = hits[np.searchsorted(hits, begins)]
    ends = begins + lengths - 1
    return Stretches(
        course=course[begins],
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
