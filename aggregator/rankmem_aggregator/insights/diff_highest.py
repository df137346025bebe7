"""The highest steps of two sessions: a median does not see steps of another kind, as those with a validation.

Stage: query; pure functions over steps. In: the steady steps of both sides. Out: how their highest differ at
equal input, and which they are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rankmem_aggregator.insights.compare import Compared, Judged, Side, overlap, single_steps
from rankmem_aggregator.insights.diff_limits import ERRORS, Limit, least_of
from rankmem_aggregator.insights.diff_steps import Key, Steps

CHANCE_MOST: Final = 0.05
"""How probable it may be that so many of the highest steps of both sides are those of head by chance."""


def highest_figures(base: Steps, head: Steps, by: str) -> dict[str, Any]:
    """The highest steps of both sides, and whether that of head had an input beyond those of both."""
    figures: dict[str, Any] = {}
    tops = [max(side.every, key=lambda row: row["peak_bytes"]) for side in (base, head)]
    for name, top in zip(("base", "head"), tops, strict=True):
        figures |= {f"{name}_highest_step": top["step"], f"{name}_highest_step_bytes": top["peak_bytes"]}
    low, high = overlap(*(side.all_known(by).values(by) for side in (base, head)))
    size = tops[1][by]
    figures["is_highest_beyond"] = bool(size) and not low <= size <= high
    return figures


def judge_highest(key: Key, base: Steps, head: Steps, by: str, limit: Limit | None) -> Judged | None:
    """How much the highest step at equal input differs; None where no step lies in the range of both.

    Without a limit of the user's for the peak there is no verdict: of a single step nobody knows whether it
    comes by chance.
    """
    base, head = base.all_known(by), head.all_known(by)

    def peaks(steps: Steps) -> tuple[Side, Any]:
        return steps.given(by), steps.values("peak_bytes")

    own, other = single_steps(*peaks(base), *peaks(head))
    if not len(own.values) or not len(other.values):
        return None
    spread = float(np.hypot(own.spread, other.spread))
    figure = Compared(base=float(own.values.max()), head=float(other.values.max()), error=spread)
    least, noise = least_of(figure, limit), ERRORS * spread
    verdict, unclear = None, ""
    if limit is not None:
        verdict = "better" if -figure.difference > max(least, noise) else "same"
    if limit is not None and figure.difference > max(least, noise):
        beyond = np.flatnonzero(other.values > figure.base + least)
        verdict = "worse" if _is_sure(head, other.places, beyond, len(own.values)) else "unclear"
        unclear = f"in {len(beyond)} of {len(other.values)} steps, which may be chance"
    return Judged(
        what="highest",
        rank=key[0],
        device=key[1],
        figure=figure,
        limit=max(least, noise),
        verdict=verdict,
        unclear=unclear,
    )


def _is_sure(head: Steps, places: Any, beyond: Any, num_base: int) -> bool:
    """Whether steps of head are high for a reason: they are too many, or those in which the model is also
    called without autograd."""
    others = [head.rows[place]["calls_without_grad"] for place in places]
    if all(others[place] for place in beyond) and not all(others):
        return True
    chance, num_head = 1.0, len(places)
    for drawn in range(len(beyond)):
        chance *= (num_head - drawn) / (num_head + num_base - drawn)
    return chance <= CHANCE_MOST
