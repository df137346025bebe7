"""Which blocks of two steps are the same ones: the longest common subsequence of what names them.

Stage: insights. In: two sequences of names. Out: pairs of places. Counting occurrences instead (the third
block of this line here is the third there) pairs all later ones wrongly where a single block is missing.
Pure Python, no memory is asked about.

Source: E. Myers, "An O(ND) difference algorithm and its variations" (1986): steps of one program differ
little, so that the time goes with the differences.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

CHANGES_MAX: Final = 2000
"""Places that only one of the two has; with more they count as different, after some seconds."""

Pairs = list[tuple[int, int]]


def aligned(first: Sequence[Hashable], second: Sequence[Hashable], changes_max: int = CHANGES_MAX) -> Pairs:
    """The places of a longest common subsequence in both, in order.

    Args:
        first, second: names of blocks, in order of their births.
        changes_max: where the two differ in more places than this, only what is alike at their beginnings
            and ends is paired.
    """
    begin = 0
    shorter = min(len(first), len(second))
    while begin < shorter and first[begin] == second[begin]:
        begin += 1
    after = 0
    while after < shorter - begin and first[-1 - after] == second[-1 - after]:
        after += 1
    middle = _middle(first[begin : len(first) - after], second[begin : len(second) - after], changes_max)
    pairs = [(place, place) for place in range(begin)]
    pairs += [(begin + one, begin + other) for one, other in middle]
    pairs += [(len(first) - back, len(second) - back) for back in range(after, 0, -1)]
    return pairs


def _middle(first: Sequence[Hashable], second: Sequence[Hashable], changes_max: int) -> Pairs:
    """Myers' greedy search: how far each diagonal comes with one more change, until the end is reached."""
    num_first, num_second = len(first), len(second)
    if not num_first or not num_second:
        return []
    reached = {1: 0}
    history: list[dict[int, int]] = []
    for changes in range(min(changes_max, num_first + num_second) + 1):
        history.append(reached.copy())
        for diagonal in range(-changes, changes + 1, 2):
            down = diagonal == -changes or (
                diagonal != changes and reached[diagonal - 1] < reached[diagonal + 1]
            )
            one = reached[diagonal + 1] if down else reached[diagonal - 1] + 1
            other = one - diagonal
            while one < num_first and other < num_second and first[one] == second[other]:
                one += 1
                other += 1
            reached[diagonal] = one
            if one >= num_first and other >= num_second:
                return _traced(history, num_first, num_second)
    return []


def _traced(history: list[dict[int, int]], one: int, other: int) -> Pairs:
    """The way back from the end: the places at which no change was needed."""
    pairs: Pairs = []
    for changes in range(len(history) - 1, -1, -1):
        reached, diagonal = history[changes], one - other
        down = diagonal == -changes or (diagonal != changes and reached[diagonal - 1] < reached[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        one_before = reached[before]
        other_before = one_before - before
        while one > one_before and other > other_before:
            one -= 1
            other -= 1
            pairs.append((one, other))
        one, other = one_before, other_before
    return pairs[::-1]
