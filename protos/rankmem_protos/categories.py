"""The categories of device memory: number, name, place in a picture, colours.

Stage: the contract between those who record, import, draw and export categories. Standard library only: the
trainer reads it, too. Source: torch/profiler/_memory_profiler.py (2.13).
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Category(enum.IntEnum):
    """torch.profiler's names and numbers; UNKNOWN and KV_CACHE are ours."""

    UNKNOWN = 0
    INPUT = 1
    TEMPORARY = 2
    ACTIVATION = 3
    GRADIENT = 4
    AUTOGRAD_DETAIL = 5
    PARAMETER = 6
    OPTIMIZER_STATE = 7
    KV_CACHE = 8
    """Keys and values that a model keeps of earlier tokens."""


CATEGORY_NAMES: Final = tuple(category.name.lower() for category in Category)
"""The names in the database, by number."""


class CategoryFacts(NamedTuple):
    """The facts of a category that several packages share."""

    stack_place: int
    """From the bottom of a stacked picture: first what stays over steps, then what comes and goes."""
    colour: str
    """In our pictures: told apart with any common colour blindness (Okabe and Ito's, and one more)."""
    timeline_index: int | None
    """In torch.profiler's memory timelines (``_CATEGORY_TO_INDEX``, not its enum); None: unknown there."""
    timeline_colour: str | None
    """In torch's picture of one; by matplotlib's names."""


_FACTS: Final = {
    Category.UNKNOWN: CategoryFacts(8, "#8c8c8c", 7, "grey"),
    Category.INPUT: CategoryFacts(4, "#f0e442", 2, "black"),
    Category.TEMPORARY: CategoryFacts(6, "#cc79a7", 3, "mediumpurple"),
    Category.ACTIVATION: CategoryFacts(5, "#e69f00", 4, "red"),
    Category.GRADIENT: CategoryFacts(3, "#d55e00", 5, "mediumblue"),
    Category.AUTOGRAD_DETAIL: CategoryFacts(7, "#009e73", 6, "royalblue"),
    Category.PARAMETER: CategoryFacts(0, "#0072b2", 0, "darkgreen"),
    Category.OPTIMIZER_STATE: CategoryFacts(1, "#56b4e9", 1, "goldenrod"),
    Category.KV_CACHE: CategoryFacts(2, "#5a4a9c", None, None),
}

CATEGORIES: Final = {CATEGORY_NAMES[category]: facts for category, facts in _FACTS.items()}
"""By name, in the order of their numbers."""

STACK_ORDER: Final = tuple(sorted(CATEGORIES, key=lambda name: CATEGORIES[name].stack_place))
"""From the bottom of a stacked picture."""
TIMELINE_INDEX: Final = {
    name: index
    for index, name in sorted(
        (facts.timeline_index, name) for name, facts in CATEGORIES.items() if facts.timeline_index is not None
    )
}
"""In the order of the files of torch.profiler's memory timelines."""
