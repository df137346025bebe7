"""The batch in parts, gradients accumulated over them.

Stage: insights. In: a step. Out: an edit. Pure functions.
"""

from __future__ import annotations

import numpy as np

from rankmem_aggregator.insights.edits import Edit, Lives, Step, added_to, soon_after
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import NEVER, is_of_model


def accumulated(count: int, *, copies_shrink: bool = False) -> Edit:
    """The batch in parts: activations of a part at a time, gradients that stay from the first part on.

    Args:
        copies_shrink: what may be a copy of a weight is none, and shrinks with the batch.
    """

    def edit(step: Step, lives: Lives) -> Lives:
        of = lives.of
        gradient = step.category[of] == "gradient"
        is_constant = is_of_model(step.window.category, step.window.phase)
        constant = (is_constant if copies_shrink else is_constant | step.copies)[of]
        older = lives.born <= step.window.begin
        backward = gradient & (step.phase[of] == "backward")
        if not backward.any():
            return lives
        made = backward & ~older
        again = _made_again(step, lives, made)
        constant[again] = True
        made &= ~again
        constant[added_to(step, lives, backward & older & (lives.died >= NEVER))[0]] = True
        edited = lives.changed(
            bytes=np.where(constant, lives.bytes, lives.bytes / count),
            died=np.where(made, np.minimum(lives.died, soon_after(step, lives)), lives.died),
        )
        begin = np.full(int(made.sum()), float(step.window.begin))
        edited = edited.and_more(begin, lives.died[made], lives.bytes[made], of[made])
        # Those of the step before were let go of in the first part, where their like was not yet there.
        gone = backward & older & (lives.died < NEVER) & made.any()
        return edited.kept(np.concatenate([~gone, np.ones(int(made.sum()), bool)]))

    return edit


def _made_again(step: Step, lives: Lives, made: Array) -> Array:
    """The gradients, and what is added to them, of a step that accumulates gradients itself; else nothing.

    They come with the first part and stay, or come and go with each, as they do in smaller parts. A step
    accumulates if backward makes most of its gradients again, after a forward, and what it makes then is gone
    before it ends. What comes and goes in the same backward, such as a convolution's weights in another
    layout, is no gradient that is made again.

    Args:
        made: gradients that backward made in the step.
    """
    in_backward = (lives.born > step.window.begin) & (step.phase[lives.of] == "backward")
    names = np.stack([step.call_of[lives.of].astype(np.float64), lives.bytes], axis=1)
    _, which = np.unique(names[in_backward], axis=0, return_inverse=True)
    after = lives.born[lives.born > lives.born[in_backward].max(initial=step.window.begin)]
    ends = after.min(initial=step.window.end)
    stays = lives.died[in_backward] > ends
    first_pass = (lives.born > step.window.begin) & step.first_pass[lives.of]
    part = np.searchsorted(np.sort(lives.born[first_pass]), lives.born[in_backward])
    where = which * (first_pass.sum() + 1) + part
    of_model = made[in_backward] & stays
    lasting = np.bincount(which[of_model], minlength=which.max(initial=0) + 1)
    brief = np.bincount(which[~stays & ~np.isin(where, where[of_model])], minlength=len(lasting))
    again = (lasting > 0) & (brief >= lasting)
    found = np.zeros(len(made), bool)
    if 2 * again.sum() > (lasting > 0).sum():
        found[in_backward] = again[which]
    return found
