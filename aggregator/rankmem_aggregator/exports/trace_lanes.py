"""Lanes for slices that overlap without nesting: a viewer draws each row as a stack.

Stage: export. In: slices of one thread by their start; out: the lane of each, 0 as long as they nest. An
unfinished range within a finished one, or ranges of several tasks on a thread, would be drawn wrong on one
lane.
"""

from __future__ import annotations

LANES_MAX = 32
"""Lanes of one thread; slices that nest on none are put on the last, where a viewer may cut them."""


class Lanes:
    """The lanes of one thread."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []

    def place(self, started_ns: int, ended_ns: int) -> int:
        """The lane of a slice; slices come in the order of their start."""
        for number, ends in enumerate(self._open):
            while ends and ends[-1] <= started_ns:
                ends.pop()
            if not ends or ended_ns <= ends[-1]:
                ends.append(ended_ns)
                return number
        if len(self._open) == LANES_MAX:
            return LANES_MAX - 1
        self._open.append([ended_ns])
        return len(self._open) - 1
