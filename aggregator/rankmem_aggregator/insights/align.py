"""Which blocks of two steps are the same ones: the longest common subsequence of what names them.

Stage: insights. In: two sequences of names. Out: pairs of places. Counting occurrences instead (the third
block of this line here is the third there) pairs all later ones wrongly where a single block is missing.
Pure Python, no memory is asked about.

Source: E. Myers, "An O(ND) difference algorithm and its variations" (1986): steps of one program differ
little, so that the time goes with the differences.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from rankmem_aggregator.insights.lives import Array

CHANGES_MAX: Final = 2000
"""Places that only one of the two has; with more they count as different, after some seconds."""

CELLS_MAX: Final = 2_000_000
"""Pairs that are tried in all runs together, in about a second; other runs stay as they were paired."""

Pairs = list[tuple[int, int]]
AreLike = Callable[[range, range], Array]
"""Of places of one and of the other: a table of how well each pair may be the same block, 0: it may not."""


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


def paired_within_runs(
    first: Sequence[Hashable], second: Sequence[Hashable], pairs: Pairs, are_like: AreLike
) -> Pairs:
    """The same pairs; where runs of one name have different lengths, those that are most alike, in order.

    Names do not tell there which of the longer run are the others: a kernel that has more scratch at another
    size makes it before its result.

    Args:
        first, second: names of blocks.
        pairs: of :func:`aligned`.
        are_like: of places of both, how well each pair may be the same block.
    """
    run_of = [_runs(first), _runs(second)]
    partners: dict[range, set[range]] = defaultdict(set)
    others: dict[range, set[range]] = defaultdict(set)
    for one, other in pairs:
        partners[run_of[0][one]].add(run_of[1][other])
        others[run_of[1][other]].add(run_of[0][one])

    changed: dict[range, range] = {}
    room = CELLS_MAX
    for run, (like, *more) in ((run, tuple(found)) for run, found in partners.items()):
        is_alone = not more and len(others[like]) == 1
        if is_alone and len(run) != len(like) and len(run) * len(like) <= room:
            changed[run] = like
            room -= len(run) * len(like)
    kept = [(one, other) for one, other in pairs if run_of[0][one] not in changed]
    for run, like in changed.items():
        kept += _most_alike(run, like, are_like(run, like))
    return sorted(kept)


def _runs(names: Sequence[Hashable]) -> list[range]:
    """Of each place the places around it that have its name without another one between."""
    found: list[range] = []
    for _, run in itertools.groupby(range(len(names)), names.__getitem__):
        begin = len(found)
        number = sum(1 for _ in run)
        found += [range(begin, begin + number)] * number
    return found


def _most_alike(one: range, other: range, like: Array) -> Iterator[tuple[int, int]]:
    """The pairs that are together most alike, in order; of several such the last ones."""
    best = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, row in enumerate(like.tolist()):
        for j, worth in enumerate(row):
            best[i + 1][j + 1] = max(best[i][j + 1], best[i + 1][j], best[i][j] + worth)
    i, j = len(one), len(other)
    while i and j:
        if like[i - 1, j - 1] and best[i][j] == best[i - 1][j - 1] + like[i - 1, j - 1]:
            i, j = i - 1, j - 1
            yield one[i], other[j]
        elif best[i][j] == best[i][j - 1]:
            j -= 1
        else:
            i -= 1


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
