"""Matches the memory events of a trace with operator calls, by time and thread.

Stage: readers; the process of ``rankmem import``, pure functions over arrays. In: operators' begins and
ends and the events' times; out: the calls that have events. A **call** is the outermost frame around the
event on its thread that names an operator of the dispatcher; failing that, the innermost other frame (a
node of autograd, an inductor's graph), as the tap has it. Both come without a stack: frames nest, so the
outermost of a thread do not overlap, and one search finds the one around an event; what lies within them is
the next level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_ship.pairing.state import ABSENT, Array

LEVELS_MAX: Final = 256
"""Levels of nested frames that are searched: the deepest seen, a compiled backward, has 12."""

_OPERATOR: Final = re.compile(r"(?!autograd::|torch::autograd::)[A-Za-z_]\w*::[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Ranges of threads, columns of equal length: start, end (ns), thread, and their number in the trace."""

    start: Array
    end: Array
    thread: Array
    number: Array

    def picked(self, rows: Array) -> Frames:
        """Some of them; a mask or places."""
        return Frames(
            start=self.start[rows], end=self.end[rows], thread=self.thread[rows], number=self.number[rows]
        )

    def __len__(self) -> int:
        return len(self.start)


def frames_of(start: Array, end: Array, thread: Array) -> Frames:
    """Frames by thread and start, the longer of two that begin together first, then in the file's order."""
    order = np.lexsort((-end, start, thread))
    return Frames(start=start[order], end=end[order], thread=thread[order], number=order)


def names_operator(name: str) -> bool:
    """Whether a frame's name is one of the dispatcher's operators, such as ``aten::mm``."""
    return _OPERATOR.fullmatch(name) is not None


def calls_of(frames: Frames, is_operator: Array, time: Array, thread: Array) -> Array:
    """The number of the call of each event; ABSENT outside of any.

    Args:
        frames: as :func:`frames_of` orders them.
        is_operator: of each frame, in their order: whether it names an operator.
        time, thread: of the events.
    """
    found = _around(_outermost(frames.picked(is_operator)), time, thread)
    rest = frames.picked(~is_operator)
    unmatched = np.flatnonzero(found == ABSENT)
    for _ in range(LEVELS_MAX):
        if not len(rest) or not len(unmatched):
            break
        is_outermost = _are_outermost(rest)
        inner = _around(rest.picked(is_outermost), time[unmatched], thread[unmatched])
        unmatched, inner = unmatched[inner != ABSENT], inner[inner != ABSENT]
        found[unmatched] = inner
        rest = rest.picked(~is_outermost)
    return found


def outermost_around(frames: Frames, time: Array, thread: Array) -> Array:
    """The number of the outermost of the frames around each event; ABSENT outside of any."""
    return _around(_outermost(frames), time, thread)


def _outermost(frames: Frames) -> Frames:
    return frames.picked(_are_outermost(frames))


def _are_outermost(frames: Frames) -> Array:
    """Whether no frame of the thread before it is still open when it begins, or ends with it and has no
    length: traces of microseconds have many such."""
    if not len(frames):
        return np.zeros(0, np.bool_)
    result = np.ones(len(frames), np.bool_)
    bounds = np.flatnonzero(np.diff(frames.thread)) + 1
    for first, last in zip(np.append(0, bounds), np.append(bounds, len(frames)), strict=True):
        highest = np.maximum.accumulate(frames.end[first:last])
        begins_after = frames.start[first + 1 : last] >= highest[:-1]
        result[first + 1 : last] = begins_after & (frames.end[first + 1 : last] > highest[:-1])
    return result


def _around(frames: Frames, time: Array, thread: Array) -> Array:
    """The number of the frame around each event, of frames that do not overlap."""
    found = np.full(len(time), ABSENT)
    for number in np.unique(thread):
        first, last = np.searchsorted(frames.thread, [number, number + 1])
        own = frames.picked(np.arange(first, last))
        if not len(own):
            continue
        at = np.flatnonzero(thread == number)
        place = np.searchsorted(own.start, time[at], side="right") - 1
        inside = (place >= 0) & (time[at] <= own.end[place])
        found[at[inside]] = own.number[place[inside]]
    return found
