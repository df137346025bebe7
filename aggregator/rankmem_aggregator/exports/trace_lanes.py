"""Rows for slices that overlap without one holding the other: a viewer draws a row as a stack.

Stage: export. In: slices of one thread by their start; out: which lane each stands on, 0 as long as they
nest. An unfinished range within a finished one, or ranges of several tasks on a thread, would be drawn wrong
on one.
"""

from __future__ import annotations

LANES_MAX = 32
"""Rows of one thread; what nests on none of them stands on the last, where a viewer may cut it."""


class Lanes:
    """The lanes of one thread."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []

    def place(self, started_ns: int, ended_ns: int) -> int:
        """The lane of a slice that starts no earlier than those before it."""
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
