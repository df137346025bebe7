"""What sharding parameters over ranks (FSDP) does to the lives of a step's blocks.

Stage: insights. In: a step of a plain or data-parallel training, and the bytes of its parameters. Out: an
edit. Each unit, a member of a family of siblings, is gathered for its forward and its backward and during the
one before (prefetch), the root from the first forward to the last backward. Gradients are whole to the end of
their unit's backward, then a shard, with a buffer for the reduction at that end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankmem_aggregator.insights.edits import Edit, Lives, Step, scaled
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import NEVER, STATE

ROOT = -1
"""What is in no unit."""

Extra = list[tuple[float, float, float]]
Spans = dict[tuple[int, str], tuple[float, float]]


def gradients_and_state(num_ranks: int, has_state: bool = True) -> Edit:
    """Gradients over ranks, and the state (ZeRO-2): reduced as they come, so that copies in buckets are gone.

    Args:
        num_ranks: over which.
        has_state: whether the state is whole now.
    """
    scale = scaled({"gradient": 1 / num_ranks} | ({STATE: 1 / num_ranks} if has_state else {}))

    def edit(step: Step, lives: Lives) -> Lives:
        return scale(step, lives.kept(~_copies(step, lives)))

    return edit


def _copies(step: Step, lives: Lives) -> Array:
    """DDP's buckets, where the gradients that backward made outlive it beside them.

    Elsewhere what backward does not make are the gradients: buckets with gradient_as_bucket_view, or a buffer
    made at the start.
    """
    gradient, backward = step.category[lives.of] == "gradient", step.phase[lives.of] == "backward"
    buckets = gradient & ~backward
    last = lives.born[backward].max(initial=step.window.begin)
    stays = gradient & backward & (lives.died > last)
    is_copied = 2 * lives.bytes[stays].sum() >= lives.bytes[buckets & (lives.died > last)].sum()
    copies: Array = buckets & is_copied
    return copies


def sharded(num_ranks: int, weights: Mapping[str, int], has_state: bool = True) -> Edit:
    """Parameters, gradients and state over ranks.

    Args:
        num_ranks: over which.
        weights: bytes of each parameter, by its name in the module tree.
        has_state: whether the state is whole now.
    """

    def edit(step: Step, lives: Lives) -> Lives:
        spans = _spans(step)
        if not any(phase == "backward" for _, phase in spans) or not weights:
            return lives
        whole = _bytes_of_units(step, weights)
        category = step.category[lives.of]
        is_buffer = (step.phase[lives.of] != "backward") & ~_copies(step, lives)
        older = (category == "gradient") & (lives.born <= step.window.begin)
        buckets = older & ~is_buffer
        is_parameter = category == "parameter"
        # Where the state is sharded, so are the copies that the optimizer steps on.
        of_model = 1.0 if has_state else sum(weights.values()) / max(lives.bytes[is_parameter].sum(), 1)
        sizes = np.where(
            is_parameter, lives.bytes * (1 - min(of_model, 1) * (1 - 1 / num_ranks)), lives.bytes
        )
        shards = (older & is_buffer) | ((category == STATE) & has_state)
        edited = lives.changed(bytes=np.where(shards, sizes / num_ranks, sizes))
        gathered = _gathered(spans, whole)
        edited = _reduced(step, edited.kept(~buckets), spans, num_ranks)
        born, died, sizes = (np.array(column) for column in zip(*gathered, strict=True))
        return edited.and_more(born, died, sizes, np.zeros(len(gathered), np.int64))

    return edit


def not_kept_whole(step: Step, lives: Lives) -> Lives:
    """Parameters that are sharded but kept whole between steps (ZeRO-3 lets go of them in its step and
    gathers them again): at the best all that may be one is gone, and nothing is gathered."""
    category, is_older = step.category[lives.of], lives.born <= step.window.begin
    may_be = (category != "gradient") & (category != STATE)
    goes = may_be & is_older & (lives.died < NEVER)
    comes = may_be & ~is_older & (lives.died >= NEVER) & np.isin(lives.bytes, lives.bytes[goes])
    return lives.kept(~(goes | comes))


def _spans(step: Step) -> Spans:
    """When each unit, and the root, ran forward and backward: first and last birth."""
    found: Spans = {}
    for phase in ("forward", "backward"):
        which = step.inside & (step.phase == phase)
        which &= np.array([path is not None for path in step.module], bool)
        for unit in np.unique(step.unit_of[which]).tolist():
            births = step.window.born[which & (step.unit_of == unit)]
            found[unit, phase] = float(births.min()), float(births.max())
    return found


def _bytes_of_units(step: Step, weights: Mapping[str, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for name, size in weights.items():
        path = name.removeprefix("module.")
        units = (number for number, unit in enumerate(step.units) if path.startswith(f"{unit}."))
        unit = next(units, ROOT)
        found[unit] = found.get(unit, 0) + size
    return found


def _reduced(step: Step, lives: Lives, spans: Spans, num_ranks: int) -> Lives:
    """Gradients whole within their unit's backward, then a shard."""
    ends = np.full(len(step.units) + 1, float(NEVER))
    for (unit, phase), span in spans.items():
        if phase == "backward":
            ends[unit] = span[1] + 1  # ROOT is the last place
    named = np.array([path is not None for path in step.module], bool)
    is_made = (step.category == "gradient") & (step.phase == "backward") & named & step.inside
    end = ends[step.unit_of[lives.of]]
    late = is_made[lives.of] & (lives.died > end)
    shards = lives.bytes[late] / num_ranks
    whole = lives.changed(died=np.where(late, end, lives.died))
    return whole.and_more(end[late], lives.died[late], shards, lives.of[late])


def _gathered(spans: Spans, whole: Mapping[int, int]) -> Extra:
    """Units whole while they run and while the one before does, and what their gradients are sent from."""
    more: Extra = []

    def add(begin: float, end: float, unit: int) -> None:
        more.append((begin, end, float(whole.get(unit, 0))))

    forward = sorted(
        (span, unit) for (unit, phase), span in spans.items() if phase == "forward" and unit != ROOT
    )
    backward = sorted(
        (span, unit) for (unit, phase), span in spans.items() if phase == "backward" and unit != ROOT
    )
    for (begin, end), unit in forward:
        add(begin - 0.5, end + 0.5, unit)
    for number, ((begin, end), unit) in enumerate(backward):
        earliest = backward[number - 1][0][0] if number else spans.get((ROOT, "backward"), (begin, 0))[0]
        add(min(earliest, begin) - 0.5, end + 0.5, unit)
    for unit in (ROOT, *(unit for _, unit in backward)):
        if (unit, "backward") in spans:
            end = spans[unit, "backward"][1]
            add(end + 0.2, end + 0.9, unit)
    first = min(span[0] for span in spans.values())
    last = max(span[1] for (_, phase), span in spans.items() if phase == "backward")
    add(first - 0.5, last + 0.5, ROOT)
    return [each for each in more if each[1] < NEVER]
