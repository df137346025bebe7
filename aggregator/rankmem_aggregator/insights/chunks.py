"""The head and the loss in parts.

Stage: insights. In: a step. Out: an edit. Pure functions.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankmem_aggregator.insights.edits import Edit, Lives, Step
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.weight_copies import CASTS
from rankmem_aggregator.insights.windows import NEVER

LOSS_OPERATORS: Final = ("aten::cross_entropy_loss", "aten::_log_softmax", "aten::log_softmax")
LOSS_BACKWARD: Final = ("aten::nll_loss_backward", "aten::_log_softmax_backward_data", "aten::_to_copy")
HEAD_OPERATORS: Final = ("aten::linear", "aten::mm", "aten::addmm", "aten::matmul")
LOGITS_SHARES: Final = (0.45, 1.05)
"""Of the largest block of the loss: what is as large as the logits, in 16 bits as well."""


def loss_in_chunks(count: int) -> Edit:
    """The head and the loss in parts: logits and their gradients of a part at a time."""

    def edit(step: Step, lives: Lives) -> Lives:
        of, inside = lives.of, lives.born > step.window.begin
        operator = step.operator[of]
        loss = inside & np.isin(operator, LOSS_OPERATORS)
        if not loss.any():
            return lives
        largest = float(lives.bytes[loss].max())
        low, high = (share * largest for share in LOGITS_SHARES)
        alike = inside & (lives.bytes >= low) & (lives.bytes <= high)
        losses = np.sort(lives.born[loss])
        is_head = np.isin(operator, HEAD_OPERATORS)
        chosen = alike & (
            loss | np.isin(operator, LOSS_BACKWARD) | (_of_its_backward(step, lives, loss) & ~is_head)
        )
        heads = _last_before(lives, alike & is_head, lives.born[alike & loss])
        chosen[heads] = True
        edited = lives.changed(bytes=np.where(chosen, lives.bytes / count, lives.bytes))
        for more in _head_gradients(step, lives, chosen, losses, heads):
            edited = edited.and_one(*more)
        return edited

    return edit


def _of_its_backward(step: Step, lives: Lives, loss: Array) -> Array:
    """Of each whether backward made it for a line of the loss, as gradients of what smooths its labels.

    In the module of the loss: a line may call others, too.
    """
    window = step.window
    places = {(step.module[place], window.line[place]) for place in lives.of[loss].tolist()}
    made_for = zip(step.module, window.forward_line, strict=True)
    is_its = np.array([line is not None and (module, line) in places for module, line in made_for], bool)
    found: Array = (step.in_backward & is_its & (step.category != "gradient"))[lives.of]
    return found


def _last_before(lives: Lives, heads: Array, losses: Array) -> Array:
    """Of each loss the last head before it."""
    places = np.flatnonzero(heads)
    places = places[np.argsort(lives.born[places])]
    before = np.searchsorted(lives.born[places], losses)
    return np.unique(places[before[before > 0] - 1])


def _head_gradients(
    step: Step, lives: Lives, chosen: Array, losses: Array, heads: Array
) -> list[tuple[float, float, float, int]]:
    """Each chunk adds to the gradient of the head: once more of it while a loss runs backward.

    The sum of the first two is a tensor of its own, made when the logits are gone: three in all. Where the
    head is tied, what it gives is a part of a gradient, as large as a parameter.

    A step that accumulates gradients does so in each of its parts, the last loss of which its backward
    follows.
    """
    of = lives.of
    backward = np.sort(lives.born[(lives.born > step.window.begin) & (step.phase[of] == "backward")])
    follows = np.searchsorted(backward, losses)
    latest = [float(losses[follows == each].max()) for each in np.unique(follows[follows < len(backward)])]
    made = (step.phase[of] == "backward") & np.isin(step.operator[of], ("aten::mm", "aten::addmm"))
    modules = {step.module[place] for place in of[heads].tolist()}
    in_head = np.array([module in modules for module in step.module], bool)[of]
    # Autocast adds up in 16 bits what it casts in the end.
    cast = in_head & (step.category[of] == "gradient") & np.isin(step.operator[of], CASTS)
    as_large = np.concatenate([lives.bytes[step.category[of] == "parameter"], lives.bytes[cast] / 2])
    is_as_large = np.isin(lives.bytes, as_large)
    is_gradient = made & (step.category[of] == "gradient")
    # What the head gives on may be as large as some parameter, too.
    part = made & in_head & is_as_large
    largest = part & (lives.bytes == lives.bytes[part].max(initial=0))
    gradient = is_gradient if (is_gradient & in_head).any() else is_gradient | largest
    spans = [
        (lives.born > begin) & (lives.born < end)
        for begin, end in zip(latest, [*latest[1:], np.inf], strict=True)
    ]
    firsts = [_first(lives, gradient & span) for span in spans]
    head = next((each for each in firsts if each is not None), None)
    if head is None:
        return []
    same = made & (step.call_of[of] == step.call_of[of[head]]) & (lives.bytes == lives.bytes[head])
    found = []
    for begin, span, first in zip(latest, spans, firsts, strict=True):
        own = _first(lives, same & span) if first is None else first
        if own is not None:
            back = float(lives.born[chosen & span].min(initial=np.inf))
            start = begin if back == np.inf else back
            born, size = float(lives.born[own]), float(lives.bytes[own])
            logits = chosen & span & (lives.born < born) & (lives.died < NEVER)
            end = float(lives.died[logits].max(initial=born))
            found.append((start, born + 0.5, size, int(of[own])))
            others = 3 if lives.died[own] <= end + 0.2 else 2
            found.append((end + 0.2, end + 0.7, others * size, int(of[own])))
    return found


def _first(lives: Lives, which: Array) -> int | None:
    places = np.flatnonzero(which)
    return int(places[np.argmin(lives.born[places])]) if len(places) else None
