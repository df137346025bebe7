"""What activation checkpoints of modules do to the lives of a step's blocks.

Stage: insights. In: a step, and the modules that are to be under a checkpoint. Out: an edit. What a module's
forward keeps for backward dies with that forward and comes again, in the same order, right before backward
reaches the module; what its forward makes and frees on the way comes again, too. Its output stays, and its
input stays until its backward is done. As ``torch.utils.checkpoint`` with use_reentrant=False (torch 2.11),
which ends as soon as all is there that was saved. When within its forward a block is let go of is not
recorded: with the forward at the latest, before the next block comes at the earliest. What outlives the
module's backward is held by others, as what it returns beside its output (keys and values), and stays. Where
more gradients come in than one, it returned more: that stays at the most. Casts of weights stay to the end of
the forward pass at the most, as autocast keeps them (torch 2.11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rankmem_aggregator.insights.edits import Edit, Lives, Step
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import LASTING, NEVER

KEPT_BETWEEN: Final = ("activation", "input")
"""Categories of what a checkpoint does not keep."""
LATE_BIRTHS: Final = 3
"""So many allocations after the last one of its backward a module's last saved block is gone."""


def checkpointed(units: Sequence[str], *, soonest: bool = False) -> Edit:
    """Modules under a checkpoint: what their forward keeps for backward comes again before it.

    Args:
        soonest: within its forward a block goes as soon as it can, not with the forward.
    """

    def edit(step: Step, lives: Lives) -> Lives:
        forward = step.first_pass[lives.of] & (lives.born > step.window.begin)
        unit_of = np.where(forward, step.unit_of[lives.of], -1)
        kept = np.isin(step.category, KEPT_BETWEEN)[lives.of]
        casts = step.casts[lives.of] & (not soonest)
        order = np.argsort(unit_of, kind="stable")
        sorted_units = unit_of[order]
        died, more = lives.died.copy(), [np.zeros((4, 0))]
        before: list[int] = []
        for unit in units:
            number = step.units.index(unit)
            begin, end = np.searchsorted(sorted_units, [number, number + 1])
            outputs: list[int] = []
            for passed, span in _passes(lives, order[begin:end], np.sort(step.backward_births(number))):
                inputs = before[len(outputs) :][:1] if not soonest else []
                outputs.append(_output(step, lives, passed)[0])
                more.append(
                    _recomputed(step, lives, passed, span, kept, casts, died, inputs, soonest=soonest)
                )
            before = outputs
        born, ends, sizes, of = np.concatenate(more, axis=1)
        return lives.changed(died=died).and_more(born, ends, sizes, of.astype(np.int64))

    return edit


def _passes(lives: Lives, forward: Array, backward: Array) -> Iterator[tuple[Array, tuple[float, float]]]:
    """The forward passes of a unit, each with the first and the last birth of its backward.

    One ends where backward begins: a step that accumulates gradients runs both once for each part.

    Args:
        forward: lives that the unit's forward makes in the step.
        backward: births of its backward, in order.
    """
    before = np.searchsorted(backward, lives.born[forward])
    begins = np.unique(before)
    for begin, end in zip(begins, [*begins[1:], len(backward)], strict=True):
        if begin < end:
            yield forward[before == begin], (float(backward[begin]), float(backward[end - 1]))


def _recomputed(
    step: Step,
    lives: Lives,
    forward: Array,
    backward: tuple[float, float],
    kept: Array,
    casts: Array,
    died: Array,
    may_be_inputs: Sequence[int],
    *,
    soonest: bool,
) -> Array:
    """What comes again of a unit, rows as those of Lives; changes ``died`` of what its checkpoint changes.

    Args:
        forward: lives of the unit's forward pass.
        backward: when the first and the last block of its backward are made.
        kept: which lives a checkpoint does not keep.
        casts: which lives may be kept by autocast.
        died: of all lives.
        may_be_inputs: what the sibling before gave on, where nothing else shows what its input is.
        soonest: what it keeps no longer goes before the next block comes.
    """
    births = np.sort(lives.born[forward])
    begin, end = float(lives.born[forward].min()), float(lives.born[forward].max())
    back = backward[0]
    if back <= end:
        return np.zeros((4, 0))
    output, comes_again = _output(step, lives, forward)
    forward = forward[forward != output]
    next_births = lives.born[lives.born > backward[1]]
    let_go = (lives.died >= back) & (lives.died <= next_births.min(initial=NEVER - 1))
    # What has no category, as indices, was kept for backward if that lets go of it.
    unnamed = let_go & (step.category[lives.of] == "unknown")
    saved = forward[(died[forward] >= back) & (kept | unnamed)[forward]]
    held = died[saved] > _few_later(lives, backward[1])
    held, saved = saved[held], saved[~held]
    if soonest:  # nor is it known whether backward needs them
        held = held[:0]
    else:
        further = _further_outputs(step, lives, saved, output, backward)
        held, saved = np.concatenate([held, further]), saved[~np.isin(saved, further)]
        died[further] = np.maximum(back, births[-1] + 0.5)
    brief = forward[died[forward] <= end + 1]

    def again(at: Array) -> Array:
        found: Array = back - 1 + (at - begin + 1) / (end - begin + 3) * 0.9
        return found

    outputs = np.array([output] if comes_again else [], np.int64)
    # A checkpoint holds its input while backward runs: of what its backward lets go of, what was made last
    # before it, or else what is as large as its output.
    # What a module under a checkpoint before it has let go of by then is none.
    before = (lives.born < begin) & (lives.born > step.window.begin) & (died >= begin)
    inputs = np.flatnonzero(before & let_go & kept)
    if not len(inputs):
        inputs = np.flatnonzero(before & (lives.bytes == lives.bytes[output]))
        died[may_be_inputs] = np.maximum(died[may_be_inputs], backward[1])
    if len(inputs):
        last = inputs[np.argmax(lives.born[inputs])]
        died[last] = max(died[last], backward[1])
    late = np.full(len(held), backward[1] + 0.5)
    ends = np.concatenate([died[saved], late, again(died[brief]), np.full(len(outputs), back - 0.05)])
    in_backward = step.in_backward[lives.of] & (lives.born > end)
    died[saved] = np.where(casts[saved], lives.born[in_backward].min() - 0.5, end + 0.5)
    if soonest:
        after = np.searchsorted(births, lives.born[saved], side="right")
        followed = after < len(births)  # the last one goes with the forward
        died[saved[followed]] = births[after[followed]] - 0.5
    both = np.concatenate([saved, held, brief, outputs])
    return np.stack([again(lives.born[both]), ends, lives.bytes[both], lives.of[both].astype(np.float64)])


def _further_outputs(
    step: Step, lives: Lives, saved: Array, output: int, backward: tuple[float, float]
) -> Array:
    """Which lives a module may return beside its output, for others to use till its backward begins.

    They get gradients, so more of these come in than go out to what was made before. Which those are is not
    recorded: what the module makes itself, and the last that each of its parts makes, of at most their bytes.
    """
    of, (begin, end) = lives.of, backward
    unit = step.unit_of[of[output]]
    passed = step.in_backward[of] & ~np.isin(step.category[of], list(LASTING))
    after = lives.born[lives.born > end].min(initial=NEVER - 1)
    own = passed & (step.unit_of[of] == unit) & (lives.born >= begin) & (lives.born <= end)
    comes = passed & (step.unit_of[of] != unit) & (lives.born > lives.born[saved].max(initial=0))
    comes &= (lives.born < begin) & (lives.died > begin) & (lives.died < after)
    num_more = int(comes.sum()) - max(int((own & (lives.died > after)).sum()), 1)
    if num_more < 1 or not len(saved):
        return saved[:0]
    most = lives.bytes[comes].max()
    prefix = f"{step.units[unit]}."
    last: dict[str, int] = {}
    found = []
    for place in saved[np.argsort(lives.born[saved])].tolist():
        part = f"{step.module[of[place]]}.".removeprefix(prefix).partition(".")[0]
        if part:
            last[part] = place
        else:
            found.append(place)
    chosen = np.array([*found, *last.values()], np.int64)
    returned: Array = chosen[lives.bytes[chosen] <= most]
    return returned


def _few_later(lives: Lives, at: float) -> float:
    """When the LATE_BIRTHS-th block comes after an instant, or the last of fewer."""
    births = np.sort(lives.born[lives.born > at])
    return float(births[:LATE_BIRTHS][-1]) if len(births) else float(NEVER - 1)


def _output(step: Step, lives: Lives, forward: Array) -> tuple[int, bool]:
    """Which life is the output of a forward pass, and whether computing it again takes it as well.

    It is the largest of the last operator's blocks that outlive the pass. What saves something that it makes
    together with its output, as a norm its mean, is run whole again; others end before they make it.
    """
    end = lives.born[forward].max()
    later = lives.born[lives.born > end]
    outlives = forward[lives.died[forward] > later.min()] if len(later) else forward
    order = outlives[np.argsort(lives.born[outlives], kind="stable")] if len(outlives) else forward
    call_of, last = step.call_of[lives.of], order[-1]
    # Calls of one operator on one line are several where another one made a block in between.
    others = lives.born[
        forward[(call_of[forward] != call_of[last]) & (lives.born[forward] < lives.born[last])]
    ]
    run = order[(call_of[order] == call_of[last]) & (lives.born[order] > others.max(initial=-1))]
    output = int(run[np.lexsort((lives.born[run], lives.bytes[run]))[-1]])
    return output, bool((lives.born[run] > lives.born[output]).any())
