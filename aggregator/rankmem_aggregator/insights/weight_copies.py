"""Which blocks of a step are copies of weights, as large as the model whatever the batch.

Stage: insights. In: a step's window. Out: masks over its blocks. Copies are made in the module that uses the
weight, as autocast, weight norm, spectral norm, fake quantization and merged adapters do; the gradient of the
weight is made there, too. What is as large by chance is taken for one: who asks tells a range. Pure
functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import COMPUTING, LASTING, Window

CASTS: Final = ("aten::to", "aten::_to_copy")
"""What backward makes the gradient of a weight with, of which forward took a cast (torch 2.11)."""
PARAMETRIZED: Final = ".parametrizations."
"""In the path of what ``torch.nn.utils.parametrize`` adds to a module."""


def casts_and_copies(window: Window) -> tuple[Array, Array]:
    """Which blocks of forward and backward may be a weight in half the bits, and which in half or as many."""
    category, phase = np.array(window.category), np.array([each or "" for each in window.phase])
    operator = np.array([each or "" for each in window.operator])
    owner = [_owner(each) for each in window.module]
    size = window.bytes
    is_parameter = category == "parameter"
    gradient = (category == "gradient") & (phase == "backward")
    made = np.isin(phase, COMPUTING) & ~np.isin(category, list(LASTING))
    cast = (phase == "backward") & np.isin(operator, CASTS) & np.isin(size, np.unique(size[is_parameter]))
    halves = {(owner[place], int(size[place]) // 2) for place in np.flatnonzero(cast).tolist()}
    trained = {(owner[place], int(size[place])) for place in np.flatnonzero(gradient).tolist()}
    casts = _in_module(made, owner, size, halves)
    copies = casts | _in_module(made, owner, size, trained)
    inside = np.arange(len(window)) >= window.num_older
    frozen = _frozen_bytes(size[is_parameter], size[gradient & inside], size[gradient & ~inside])
    return casts, copies | (made & np.isin(size, frozen))


def _owner(module: str | None) -> str | None:
    """The module whose weight it is: the one that is parametrized, where it is part of that."""
    return None if module is None else f"{module}.".partition(PARAMETRIZED)[0].removesuffix(".")


def _in_module(
    made: Array, owner: Sequence[str | None], size: Array, sizes: set[tuple[str | None, int]]
) -> Array:
    """Which of the blocks have one of the sizes of their module."""
    found = np.zeros(len(made), bool)
    meant = made & np.isin(size, np.array([each for _, each in sizes], np.int64))
    for place in np.flatnonzero(meant).tolist():
        found[place] = (owner[place], int(size[place])) in sizes
    return found


def _frozen_bytes(parameters: Array, gradients: Array, older: Array) -> Array:
    """Sizes of which there are more parameters than gradients."""
    counts = Counter(gradients.tolist()) | Counter(older.tolist())
    frozen = [size for size, count in Counter(parameters.tolist()).items() if count > counts[size]]
    return np.array(frozen, np.int64)
