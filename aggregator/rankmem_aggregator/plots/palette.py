"""The colours of curves: a category has the same colour in every picture.

Stage: render. Colours that people with any common colour blindness tell apart (Okabe and Ito's, and one
more); names that are no categories take them in turn. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankmem_protos.categories import CATEGORIES, STACK_ORDER

BEFORE_THE_RECORDING: Final = "before the recording"
"""A timeline's name for the bytes that a recording began with."""
OF_CATEGORY: Final = {BEFORE_THE_RECORDING: "#4a4a4a"} | {
    name: CATEGORIES[name].colour for name in STACK_ORDER
}
"""From the bottom of a stacked picture."""
IN_TURN: Final = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#5a4a9c", "#8c8c8c",
)  # fmt: skip
"""Grey comes last: for the series that merges all others."""


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each name, in order; categories have their own."""
    if all(name in OF_CATEGORY for name in names):
        return [OF_CATEGORY[name] for name in names]
    return [IN_TURN[place % len(IN_TURN)] for place in range(len(names))]
