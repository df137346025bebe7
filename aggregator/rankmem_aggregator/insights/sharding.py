"""What sharding parameters over ranks (FSDP) does to the lives of a step's blocks.

Stage: insights. In: a step of a plain or data-parallel training, and the bytes of its parameters. Out: an
edit. Each unit, a member of a family of siblings, is gathered for its forward and its backward and during the
one before (prefetch), the root from the first forward to the last backward. Gradients are whole to the end of
their unit's backward, then a shard, with a buffer for the reduction at that end.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.edits import Edit, Lives, Step, scaled
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import NEVER, STATE, Place

Sharded = Literal["state", "parameters"]
"""What a recording has over its ranks; with the parameters their gradients and state."""

PART: Final = 1.25
"""How many times its own bytes a parameter's shape has at least, if others have the rest: two parts may not
be equal."""
NEAR: Final = 0.01
"""How much bytes may differ that are taken for equal: of rounding, and of scalars beside the state."""

ROOT = -1
"""What is in no unit."""

Extra = list[tuple[float, float, float]]
Spans = dict[tuple[int, str], tuple[float, float]]


def already(ask: Ask, place: Place, weights: Sequence[Mapping[str, Any]]) -> Sharded | None:
    """What a job of several ranks seems to have sharded over its data-parallel ranks.

    Parameters are, where most of their bytes are of ones whose shape has more than tensor parallelism
    explains; state is, where ranks hold the same bytes of parameters and other bytes of state. Equal shards
    of state, FSDP1 and ZeRO-3 cannot be told from none.

    Args:
        weights: ``size_bytes``, ``grad_size_bytes``, ``dtype`` and ``shape`` of each parameter of the rank.
    """
    of_ranks = ask("rank_coordinates", session=place.session_id).to_pylist()
    coordinates = [row for row in of_ranks if row["attempt"] == place.attempt]
    tensor_parallel = 1 + max((row["tp"] or 0 for row in coordinates), default=0)
    parts = sum(each["size_bytes"] for each in weights if _share(each) > PART * tensor_parallel)
    if 2 * parts > sum(each["size_bytes"] or 0 for each in weights):
        return "parameters"
    rows = ask("held_at_own_peaks", session=place.session_id, by="category").to_pylist()
    held: dict[int, Counter[str]] = {}
    for row in rows:
        if (row["device_type"], row["attempt"]) == (place.device_type, place.attempt):
            held.setdefault(row["rank"], Counter())[row["group_name"]] += row["bytes_at_rank_peak"]
    own = held.get(place.rank, Counter())["parameter"]
    where = {row["rank"]: [row[name] for name in ("tp", "pp", "ep")] for row in coordinates}
    states = [
        each[STATE]
        for rank, each in held.items()
        if where.get(rank) == where.get(place.rank) and abs(each["parameter"] - own) <= NEAR * own
    ]
    trained = sum(each["grad_size_bytes"] or 0 for each in weights) or own
    return "state" if own and _are_shards(states, trained) else None


def _are_shards(states: Sequence[int], trained: int) -> bool:
    """Whether ranks hold unequal parts of a state, which add up to a whole one or several.

    A whole one has as many bytes as the parameters that are trained, or several times as many. Where a rank
    holds that much itself, the others lack some for another reason: they peaked before all of it was made, or
    train less.
    """
    differ = max(states) - min(states) > NEAR * max(states)
    return (
        min(states) > 0 and differ and _is_whole(sum(states), trained) and not _is_whole(max(states), trained)
    )


def _is_whole(state: int, trained: int) -> bool:
    times = round(state / trained)
    return times > 0 and abs(state - times * trained) <= NEAR * state


def _share(weight: Mapping[str, Any]) -> float:
    """How many times the bytes of a parameter its shape has; 1 where that is not known."""
    bits = re.search(r"float(16|32|64)$", weight["dtype"] or "")
    if bits is None or not weight["shape"] or not weight["size_bytes"]:
        return 1
    count = math.prod(int(each) for each in re.findall(r"\d+", weight["shape"]))
    return float(count * int(bits[1]) / (8 * weight["size_bytes"]))


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
    whole_now = ("parameter", STATE) if has_state else ("parameter",)

    def edit(step: Step, lives: Lives) -> Lives:
        spans = _spans(step)
        if not any(phase == "backward" for _, phase in spans) or not weights:
            return lives
        whole = _bytes_of_units(step, weights)
        category = step.category[lives.of]
        is_buffer = (step.phase[lives.of] != "backward") & ~_copies(step, lives)
        older = (category == "gradient") & (lives.born <= step.window.begin)
        buckets = older & ~is_buffer
        shards = np.isin(category, whole_now) | (older & is_buffer)
        edited = lives.changed(bytes=np.where(shards, lives.bytes / num_ranks, lives.bytes))
        gathered = _gathered(spans, whole)
        edited = _reduced(step, edited.kept(~buckets), spans, num_ranks)
        born, died, sizes = (np.array(column) for column in zip(*gathered, strict=True))
        return edited.and_more(born, died, sizes, np.zeros(len(gathered), np.int64))

    return edit


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
