"""What optimizer state in fewer bits, or on the host, does to the lives of a step's blocks: least and most.

Stage: insights. In: a step. Out: edits. How an optimizer computes with such state decides what it makes in
its step, and no recording of another optimizer shows that. Least: as fused kernels do, or a step on the host,
which make nothing. Most: the state of one parameter at a time is unpacked, or fetched, and each intermediate
result is a tensor of its own. State of all parameters unpacked at once needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from rankmem_aggregator.insights.edits import Edit, Lives, Step, scratch_of
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import NEVER, STATE

WHOLE_BITS: Final = 32
"""Of an element, when it is computed with."""
RESULTS_MOST: Final = 5
"""As large as a parameter, beside its unpacked state: what Adam makes, written without thought of memory."""
SMALL_ELEMENTS: Final = 4096
"""Optimizers with 8 bits leave the state of smaller parameters as it is (Source: bitsandbytes 0.48, torchao
0.18)."""
SCALE_SHARE_MOST: Final = 4 / 64
"""Of 8-bit state: a scale of 4 bytes for each 64 elements; usual are 256 and 2,048."""
STATES: Final = 2
"""Of a parameter, where sizes do not tell: Adam's."""
COUNT_BYTES: Final = 8
"""State up to this is a count of steps."""


def state_least(bits: int, recorded_bits: int = WHOLE_BITS) -> Edit:
    """State in so many bits, and no scratch in the optimizer's step.

    Args:
        bits: of an element; 0: on the host.
        recorded_bits: those of the recording.
    """

    def change(step: Step, lives: Lives, state: Array) -> Lives:
        sizes = np.where(state, lives.bytes * bits / recorded_bits, lives.bytes)
        goes = _scratch(step, lives) | (state & (lives.bytes <= COUNT_BYTES))
        return lives.changed(bytes=sizes).kept(~goes)

    return _where_it_helps(bits, recorded_bits, change)


def state_most(bits: int, recorded_bits: int = WHOLE_BITS) -> Edit:
    """State in so many bits, of which an optimizer unpacks that of one parameter at a time.

    Args:
        bits: of an element; 0: on the host.
        recorded_bits: those of the recording.
    """

    def change(step: Step, lives: Lives, state: Array) -> Lives:
        share = bits / recorded_bits
        stays = lives.bytes <= COUNT_BYTES
        if bits == 8:
            share *= 1 + SCALE_SHARE_MOST
            stays |= lives.bytes * 8 < SMALL_ELEMENTS * recorded_bits
        edited = lives.changed(bytes=np.where(state & ~stays, lives.bytes * share, lives.bytes))
        edited = edited.kept(~_scratch(step, lives))
        largest = float(lives.bytes[state].max())
        of = int(lives.of[np.flatnonzero(state & (lives.bytes == largest))[0]])
        for begin, end in _runs(step, lives):
            results = RESULTS_MOST + _states_of(step, lives, largest, begin)
            edited = edited.and_one(begin, end, results * largest * WHOLE_BITS / recorded_bits, of)
        return edited

    return _where_it_helps(bits, recorded_bits, change)


def _where_it_helps(bits: int, recorded_bits: int, change: Callable[[Step, Lives, Array], Lives]) -> Edit:
    """The change, of what is state; none where that has no more bits, or is but counts of steps."""

    def edit(step: Step, lives: Lives) -> Lives:
        state = step.category[lives.of] == STATE
        if bits >= recorded_bits or lives.bytes[state].max(initial=0) <= COUNT_BYTES:
            return lives
        return change(step, lives, state)

    return edit


def _scratch(step: Step, lives: Lives) -> Array:
    """What the optimizer makes in its step and gives back; else it is state that nobody knows as such."""
    found: Array = scratch_of(step, lives) & (lives.died < NEVER)
    return found


def _states_of(step: Step, lives: Lives, largest: float, at: float) -> int:
    """How many states a parameter has, by how many are as large as the largest, of how many gradients."""
    category = step.category[lives.of]
    alike = (lives.bytes == largest) & (lives.born <= at) & (lives.died > at)
    gradients, states = (int((alike & (category == each)).sum()) for each in ("gradient", STATE))
    return -(-states // gradients) if gradients else STATES


def _runs(step: Step, lives: Lives) -> Iterator[tuple[float, float]]:
    """When the optimizer runs: from the first block that it makes to the last, without others in between.

    Where it makes none, it is taken to run at the end of the step, or right after backward where the
    gradients are gone by then.
    """
    inside = lives.born > step.window.begin
    phase = step.phase[lives.of]
    own = np.sort(lives.born[inside & (phase == "optimizer")])
    others = np.sort(lives.born[inside & np.isin(phase, ("forward", "backward"))])
    if len(own):
        numbers = np.searchsorted(others, own)
        for number in np.unique(numbers):
            run = own[numbers == number]
            yield float(run[0]) - 0.5, float(run[-1]) + 0.5
        return
    gradient = inside & (step.category[lives.of] == "gradient")
    if (lives.died[gradient] >= NEVER).any() or not len(others):
        yield float(step.window.end), float(NEVER)
    else:
        yield float(others[-1]) + 0.25, float(others[-1]) + 0.5
