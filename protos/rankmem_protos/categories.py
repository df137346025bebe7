"""The categories of device memory, one row each: name, number, place in a picture, colours.

Stage: the contract between recording, imports, pictures and exports. Imports the standard library alone, so
the trainer may import it too. Source: torch/profiler/_memory_profiler.py (2.13).
"""

from __future__ import annotations

from typing import Final, NamedTuple


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


CATEGORIES: Final = {
    "unknown": CategoryFacts(8, "#8c8c8c", 7, "grey"),
    "input": CategoryFacts(4, "#f0e442", 2, "black"),
    "temporary": CategoryFacts(6, "#cc79a7", 3, "mediumpurple"),
    "activation": CategoryFacts(5, "#e69f00", 4, "red"),
    "gradient": CategoryFacts(3, "#d55e00", 5, "mediumblue"),
    "autograd_detail": CategoryFacts(7, "#009e73", 6, "royalblue"),
    "parameter": CategoryFacts(0, "#0072b2", 0, "darkgreen"),
    "optimizer_state": CategoryFacts(1, "#56b4e9", 1, "goldenrod"),
    "kv_cache": CategoryFacts(2, "#5a4a9c", None, None),
}
"""By name, in the order of their numbers in a spool: torch.profiler's from 1 to 7; 0 and 8 are ours."""

STACK_ORDER: Final = tuple(sorted(CATEGORIES, key=lambda name: CATEGORIES[name].stack_place))
"""From the bottom of a stacked picture."""
TIMELINE_INDEX: Final = {
    name: index
    for index, name in sorted(
        (facts.timeline_index, name) for name, facts in CATEGORIES.items() if facts.timeline_index is not None
    )
}
"""In the order of the files of torch.profiler's memory timelines."""
