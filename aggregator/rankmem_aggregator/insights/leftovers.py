"""What of the step before is left over, and nothing that this one reads.

Stage: insights. In: a step's window. Out: a mask over its blocks. When a tensor was used last is not
recorded. Left over, as far as can be seen, is a result of the step before that a variable kept until the same
result of this step was there: an activation of a call that backward goes through, which goes before backward
begins and after its like has come, and is as large as nothing that the model is given. All else may be read
by this step, as a batch that was loaded ahead, or what a model remembers. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rankmem_aggregator.insights.input_shapes import shape_of
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import NEVER, Window

ELEMENT_BYTES: Final = (1, 2, 4, 8)
"""That an element of a model's input may have."""


def left_over(window: Window, call_of: Array) -> Array:
    """Which older blocks are left over.

    Args:
        call_of: of each block a number, the same for those of one operator, module and line.
    """
    found = np.zeros(len(window), bool)
    inputs, older = window.size.inputs, window.num_older
    if inputs is None:
        return found
    backward = np.array([phase == "backward" for phase in window.phase], bool)
    backward[:older] = False
    begins = window.born[backward].min(initial=NEVER)
    goes = (window.died < begins) & np.array([each == "activation" for each in window.category], bool)
    goes[older:] = False
    goes &= ~np.isin(window.bytes, _given_bytes([shape for _, shape in inputs]))
    if not goes.any():
        return found
    first = _first_of_like(call_of[older:], window.bytes[older:], window.born[older:])
    passed = {(window.module[each], window.forward_line[each]) for each in np.flatnonzero(backward).tolist()}
    for place in np.flatnonzero(goes).tolist():
        like = int(call_of[place]), int(window.bytes[place])
        is_passed = (window.module[place], window.line[place]) in passed
        found[place] = is_passed and first.get(like, NEVER) < window.died[place]
    return found


def _first_of_like(call_of: Array, sizes: Array, born: Array) -> dict[tuple[int, int], int]:
    """When the first block of an operator, module, line and size is made."""
    likes = zip(call_of.tolist(), sizes.tolist(), strict=True)
    return dict(reversed(list(zip(likes, born.tolist(), strict=True))))


def _given_bytes(shapes: Sequence[str]) -> list[int]:
    """What a tensor of one of these shapes may have."""
    return [math.prod(shape_of(shape)) * size for shape in shapes for size in ELEMENT_BYTES]
