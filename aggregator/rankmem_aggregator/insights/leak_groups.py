"""What the blocks of each line and operator hold after each step, and whether it grows without end.

Stage: query, in the reader's process. In: the changes from step to step. Out: groups, each with its trend;
what a cache, the inputs or the model bound is told from a leak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankmem_aggregator.insights import leak_bounds as bounds
from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.leak_text import AHEAD_STEPS, NEGLIGIBLE_BYTES, SLOWS, began_late
from rankmem_aggregator.insights.trend import (
    Growth,
    Trend,
    comes_evenly,
    grown_in,
    grows_only_in,
    trend_of,
    warm_up,
)

CERTAIN_STEPS: Final = 60
"""Below so many steps a cache that fills at random still looks like a leak, in 1 of 5 series of 30 steps."""
ENDS: Final = ("cache", "input", "model", "stopped")
"""Verdicts of what is no leak."""

Track = tuple[int, int, str]
"""Attempt, rank, device."""


@dataclass(frozen=True, slots=True)
class Group:
    """The blocks of a line and an operator on a device of a rank."""

    track: Track
    line: str | None
    operator: str | None
    module: str | None
    category: str | None
    series: NDArray[np.int64]
    """Bytes after each step."""
    blocks: NDArray[np.int64]
    """How many, after each step."""
    made: NDArray[np.int64]
    """Bytes that were made in each step and outlive it; where a step changed nothing, at most these."""
    trend: Trend
    kind: str | None = None
    """What all its blocks meant last; None where they did not mean the same."""
    unsure: str | None = None
    """Why growth may be no leak, however long it goes on."""

    @property
    def is_made_anew(self) -> bool:
        """Whether nothing after the warm-up is held from steps before."""
        start = warm_up(len(self.series))
        return not (self.made[start:] < self.series[start:]).any()


def growing(
    ask: Ask, of: dict[str, Any], changes: pa.Table, judged: dict[tuple[int, int], list[int]]
) -> list[Group]:
    """The groups that grow or have grown: a leak is told from what the inputs or the model bound.

    Args:
        ask: asks a named query.
        of: the session and the rank of which ``changes`` are.
        changes: as in :func:`groups_of`.
        judged: as there.
    """
    every = list(groups_of(changes, judged))
    groups = [group for group in every if group.trend.growth != "none"]
    if not any(group.trend.may_grow for group in groups):
        return groups
    groups = _of_input(ask, of, groups, judged)
    new: dict[tuple[int, int], list[list[int]]] = {}
    for row in ask("new_sizes", **of).to_pylist():
        new.setdefault((row["attempt"], row["rank"]), []).append(row["places"])
    groups = [_of_cache(group, new.get(group.track[:2], [])) for group in groups]
    return [_judged_late(group) for group in _of_model(ask, of, groups, every, changes)]


def _grows_as(group: Group, growth: Growth) -> Group:
    return replace(group, trend=replace(group.trend, growth=growth, may_go_on=False, slows=False))


def _judged_late(group: Group) -> Group:
    """A group whose growth began so late that a cache may still fill, or slows down: not sure of either."""
    late, is_long = group.trend.late_steps, len(group.series) >= CERTAIN_STEPS
    if group.trend.slows:
        return replace(group, unsure=SLOWS)
    is_short = is_long and 0 < late < CERTAIN_STEPS - warm_up(CERTAIN_STEPS)
    if group.trend.growth == "leak" and is_short and not group.unsure:
        return replace(group, unsure=began_late(late))
    return group


def _of_cache(group: Group, new_sizes: Sequence[Sequence[int]]) -> Group:
    """A group that leaks, or a cache where it grows only in steps with new sizes: of one dimension, say."""
    found = [places for places in new_sizes if group.trend.may_grow and grows_only_in(group.series, places)]
    if not found:
        return group
    start = warm_up(len(group.series))
    when = [grown_in(group.series), *([place for place in places if place > start] for places in found)]
    is_even = any(comes_evenly(places) for places in when)
    return replace(_grows_as(group, "cache"), unsure=bounds.EVEN_SIZES if is_even else None)


def _of_model(
    ask: Ask, of: dict[str, Any], groups: list[Group], every: Sequence[Group], changes: pa.Table
) -> list[Group]:
    """The groups; those of gradients and state are bounded by the model where its parameters explain them."""
    own = {group.track for group in groups if group.trend.may_grow and group.kind in bounds.OF_MODEL}
    if not own:
        return groups
    optimizers: dict[tuple[int, int], set[str]] = {}
    for row in ask("optimizers_of_ranks", **of).to_pylist():
        optimizers.setdefault((row["attempt"], row["rank"]), set()).add(row["optimizer"])
    held: dict[tuple[Track, str | None], NDArray[np.int64]] = {}
    for group in every:
        whose = group.track, group.kind
        held[whose] = held[whose] + group.series if whose in held else group.series
    steps = {group.track: len(group.series) for group in groups}
    parameters = {track: bounds.parameter_bytes(changes, steps[track], track) for track in own}
    older = {group.track for group in every if group.kind == bounds.GRADIENT and not group.is_made_anew}

    def told(group: Group) -> Group:
        track = group.track
        if track not in own or not group.trend.may_grow or group.kind not in bounds.OF_MODEL:
            return group
        if group.kind == bounds.PARAMETER:
            return replace(group, unsure=bounds.GROWING_MODEL)
        of_kind, own_parameters = held[track, group.kind], parameters[track]
        times = bounds.STATE_TIMES if group.kind == bounds.STATE else 1
        if own_parameters[-1] > own_parameters[warm_up(len(group.series))]:
            is_with = bounds.grows_with_model(group.series, of_kind, own_parameters, times)
            return replace(group, unsure=bounds.GROWING_MODEL) if is_with else group
        num_bytes = int(own_parameters[-1])
        gradients = held.get((track, bounds.GRADIENT), np.zeros(len(group.series), np.int64))
        found = bounds.of_model(group.series, of_kind, gradients, num_bytes, optimizers.get(track[:2], set()))
        if found is not None:
            return replace(_grows_as(group, "model"), unsure=found)
        is_explained = group.kind == bounds.STATE and of_kind[-1] <= times * num_bytes
        return replace(group, unsure=bounds.FIRST_USED) if is_explained and track not in older else group

    return [told(group) for group in groups]


def _of_input(
    ask: Ask, of: dict[str, Any], groups: list[Group], judged: Mapping[tuple[int, int], Sequence[int]]
) -> list[Group]:
    """The groups; those that each step makes anew for its own input end with it."""
    own = {group.track[:2] for group in groups if group.trend.may_grow and group.is_made_anew}
    if not own:
        return groups
    given = {whose: np.full((3, len(judged[whose])), np.nan) for whose in own}
    for row in ask("given_bytes", **of).to_pylist():
        whose = row["attempt"], row["rank"]
        if whose in own:
            given[whose][:2, row["place"]] = row["largest_bytes"], row["last_bytes"]
    for sizes in given.values():
        sizes[2, 1:] = sizes[1, :-1]  # of what is made after the optimizer's step, for the input before it

    def told(group: Group) -> Group:
        if not group.trend.may_grow or not group.is_made_anew:
            return group
        found = bounds.of_input(group.series, given[group.track[:2]])
        return _grows_as(group, "input") if found == bounds.INPUT else replace(group, unsure=found)

    return [told(group) for group in groups]


def groups_of(changes: pa.Table, judged: dict[tuple[int, int], list[int]]) -> Iterator[Group]:
    """The groups of the ranks that can be judged, each with its trend.

    Args:
        changes: the rows of ``held_after_steps``, in its order.
        judged: by attempt and rank the steps.
    """
    if not changes.num_rows:
        return
    keys_of = ("attempt", "rank", "device", "line", "operator")
    keys = [
        changes[name].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        for name in keys_of
    ]
    starts = np.nonzero(np.any([np.diff(key, prepend=-1) != 0 for key in keys], axis=0))[0]
    heads = changes.take(pa.array(starts)).to_pylist()
    names = ("place", "change_bytes", "change_blocks", "made_bytes")
    places, sizes, blocks, made = (changes[name].to_numpy() for name in names)
    kinds = changes["kind"].to_pylist()
    for head, first, after in zip(heads, starts, [*starts[1:], changes.num_rows], strict=True):
        steps = judged.get((head["attempt"], head["rank"]))
        if steps is None:
            continue
        own = slice(first, after)
        series = _running(places[own], sizes[own], len(steps))
        yield Group(
            (head["attempt"], head["rank"], head["device"]),
            head["line"],
            head["operator"],
            pc.min(changes["module"].slice(first, after - first)).as_py(),
            pc.min(changes["category"].slice(first, after - first)).as_py(),
            series,
            _running(places[own], blocks[own], len(steps)),
            _made(places[own], made[own], series),
            trend_of(series),
            kinds[first] if len(set(kinds[own])) == 1 else None,
        )


def _running(places: NDArray[np.int64], changes: NDArray[np.int64], num_steps: int) -> NDArray[np.int64]:
    series = np.zeros(num_steps, np.int64)
    series[places] = changes
    return np.cumsum(series)


def _made(places: NDArray[np.int64], made: NDArray[np.int64], series: NDArray[np.int64]) -> NDArray[np.int64]:
    most = series.copy()  # all may have been made anew in a step that changed nothing
    most[places] = made
    return most


def matters(group: Group) -> bool:
    """Whether a group leaks enough to be a finding."""
    return group.trend.growth == "leak" and group.trend.rate * AHEAD_STEPS >= NEGLIGIBLE_BYTES


def verdict_of(group: Group) -> str:
    """What the answer says of a group."""
    if group.trend.growth in ENDS:
        return group.trend.growth
    if not matters(group):
        return "negligible"
    return "leaks" if len(group.series) >= CERTAIN_STEPS and not group.unsure else "grows"
