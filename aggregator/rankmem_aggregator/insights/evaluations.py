"""Which blocks of a step are of an evaluation within it, whose batch is not the training's.

Stage: insights. In: a step. Out: a mask over its blocks. Whether autograd recorded is not known of a block.
What tells an evaluation is a run of forward passes of which backward keeps nothing, though of the same calls
it keeps something elsewhere in the step. Pure functions.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Set
from typing import Final

import numpy as np

from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import NEVER, Window

CALLS_SHARE: Final = 0.5
"""Of the operators in modules of which backward keeps something: more than so many are in such a run."""
CALLS_LEAST: Final = 2
"""And at least so many."""
OF_TRAINING: Final = ("backward", "optimizer")
"""Phases that no evaluation has."""

Call = tuple[str | None, str | None]
"""Operator and module of a block."""


def of_evaluations(window: Window) -> Array:
    """Which blocks are of evaluations: all from the passes' begin to their end, but what is computed again.

    So with their input, and with what becomes of their output before the training goes on. Where there are
    any, what is older than the step may be their input, or the output of those in the step before.
    """
    phase = np.array([each or "" for each in window.phase])
    inside = np.arange(len(window)) >= window.num_older
    backward = np.sort(window.born[inside & (phase == "backward")])
    forward = np.flatnonzero(inside & (phase == "forward") & ~np.array(window.recomputed, bool))
    found = np.zeros(len(window), bool)
    follows = np.searchsorted(backward, window.born[forward])
    has_backward = follows < len(backward)
    ends = backward[np.minimum(follows, len(backward) - 1)] if len(backward) else follows
    outlives = has_backward & (window.died[forward] > ends)
    # The program holds what is there after the step, such as an evaluation's output: it is no edge.
    kept = outlives & (window.died[forward] < NEVER)
    calls = [(window.operator[each], window.module[each]) for each in forward.tolist()]
    saved = Counter(itertools.compress(calls, outlives))
    alike = _alike(set(calls), saved.keys())
    is_like = [
        call in alike and (saved[call] > 1 or not held) for call, held in zip(calls, outlives, strict=True)
    ]
    edges = [-1, *np.flatnonzero(kept).tolist(), len(forward)]
    for before, after in itertools.pairwise(edges):
        run = range(before + 1, after)
        like = [place for place in run if is_like[place]]
        num_like = len({calls[place] for place in like})
        if num_like >= CALLS_LEAST and num_like > CALLS_SHARE * len(saved):
            found |= _between(
                window,
                window.begin if before < 0 else int(window.born[forward[before]]),
                int(window.born[forward[like[-1]]]),
                NEVER if after == len(forward) else int(window.born[forward[after]]),
            )
    found &= inside & ~np.array(window.recomputed, bool) & ~np.isin(phase, OF_TRAINING)
    return found | ~inside if found.any() else found


def _alike(calls: Set[Call], saved: Set[Call]) -> set[Call]:
    """Those of the calls of which backward keeps something, by their own name or in a model that is wrapped.

    A copy with averaged weights has the training's names behind a prefix, or is what a wrapper holds, or has
    the names itself and the training the prefix. What either calls outside of its parts has the prefix, or
    the name of a class, for its module.
    """
    endings = {ending for call in saved for ending in _endings(call)}
    prefixes = {
        (call[1] or "").removesuffix(f".{ending[1]}")
        for call in calls
        for ending in _endings(call)[1:]
        if ending in calls
    }

    def is_whole(module: str | None) -> bool:
        return bool(prefixes) and (module in prefixes or "." not in (module or ""))

    of_whole = {operator for operator, module in saved if is_whole(module)}
    return {
        call
        for call in calls
        if call in endings
        or not saved.isdisjoint(_endings(call))
        or (is_whole(call[1]) and call[0] in of_whole)
    }


def _endings(call: Call) -> list[Call]:
    operator, module = call
    names = (module or "").split(".")
    return [call, *((operator, ".".join(names[start:])) for start in range(1, len(names)))]


def _between(window: Window, first: int, last: int, until: int) -> Array:
    """Which blocks are made from the first to the last instant, and, up to the third one, in forward or for a
    while."""
    born = window.born
    is_brief = np.array([each == "forward" for each in window.phase], bool) | (window.died <= until)
    found: Array = (born > first) & ((born <= last) | ((born < until) & is_brief))
    return found
