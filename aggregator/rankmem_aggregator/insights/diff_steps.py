"""The steady steps of two sessions, and the size of the inputs by which they are compared.

Stage: query, in the reader's process. In: ways to ask named queries of both. Out: :class:`Steps` by rank and
device, and the column that says what the model was given; an error where steps of equal input cannot be
found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from rankmem_aggregator.insights import diff_text as words
from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.compare import Side, equal_input, some_steps
from rankmem_aggregator.insights.diff_arguments import Matched, arguments_of, matched
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.quantity_text import counted
from rankmem_protos.devices import by_weight

WARM_UP_STEPS: Final = 2
"""The optimizer's state comes in the first, caches fill in the second."""
STEPS_LEAST: Final = 3

Key = tuple[int, str]
"""Rank and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A session to compare."""

    ask: Ask
    session_id: str
    complete: bool | None = True
    missing: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Steps:
    """The steady steps of a device of a rank."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Some, evenly spaced."""
    every: list[dict[str, Any]] = field(default_factory=list)
    """All of them."""
    count: int = 0
    """Of all, those of the warm-up too."""
    num_unknown: int = 0
    """Steps that are left out since their input is not recorded."""

    def values(self, name: str) -> Any:
        """A column of them."""
        return np.array([row[name] for row in self.rows], np.float64)

    def given(self, by: str) -> Side:
        """What the model was given, by this column."""
        named = by != "batch_bytes"
        return Side(sizes=self.values(by), names=[row["inputs"] if named else None for row in self.rows])

    def knows(self, by: str) -> bool:
        """Whether this column has what every step was given."""
        return all(row[by] for row in self.rows)

    def keep_known(self, by: str) -> None:
        """Leaves out the steps without a value in this column."""
        known = [row for row in self.rows if row[by]]
        self.num_unknown, self.rows = len(self.rows) - len(known), known

    def all_known(self, by: str) -> Steps:
        """All steps with a value in this column."""
        return Steps(rows=[row for row in self.every if row[by]])


class Sides(NamedTuple):
    """The steps of both sessions, and what they are compared by."""

    base: dict[Key, Steps]
    head: dict[Key, Steps]
    by: str
    arguments: Matched


def sides_of(base: Recorded, head: Recorded) -> Sides:
    """The steps of both sides.

    Raises:
        CannotTell: where they cannot be compared, with the reason.
    """
    both = {"base": base, "head": head}
    for name, side in both.items():
        if side.complete is False:
            lacks = "; ".join(side.missing[:3])
            raise CannotTell(
                f"{name} ({side.session_id}) is incomplete, so its figures may be wrong: {lacks}"
            )
    steps = {name: _steps(side, name) for name, side in both.items()}
    own, other = (
        arguments_of(side.ask("input_arguments", session=side.session_id), _attempt(steps[name]))
        for name, side in both.items()
    )
    arguments = matched(own, other)
    if arguments.is_known and not arguments.is_whole:
        if not arguments.base:
            raise CannotTell(words.no_common_argument(own, other))
        counts = {"base": arguments.base, "head": arguments.head}
        steps = {name: _steps(side, name, counts[name]) for name, side in both.items()}
    by = _covariate(steps["base"], steps["head"], arguments)
    return Sides(steps["base"], steps["head"], by, arguments)


def _attempt(steps: Mapping[Key, Steps]) -> int:
    return int(next(iter(steps.values())).rows[0]["attempt"])


def _steps(side: Recorded, name: str, arguments: Sequence[str] | None = None) -> dict[Key, Steps]:
    """The steady steps of each rank on the kind of device that counts, by rank and device.

    Args:
        arguments: of the model that count in the elements of an input; None: all.
    """
    where = side.ask("rank_coordinates", session=side.session_id).to_pylist()
    names = None if arguments is None else json.dumps(arguments)
    rows = side.ask("steps_with_inputs", session=side.session_id, arguments=names).to_pylist()
    if not rows:
        raise CannotTell(f"{name} ({side.session_id}) has no steps: call rankmem_agent.step() at their ends")
    attempt = rows[-1]["attempt"]
    rows = [row for row in rows if row["attempt"] == attempt]
    running = sorted(row["rank"] for row in where if row["attempt"] == attempt and row["is_running"])
    if running:
        raise CannotTell(f"rank {running[0]} of {name} ({side.session_id}) has no end: it may still run")
    peaks = {row["device_type"]: row["peak_bytes"] for row in rows}
    chosen = min(peaks, key=lambda device_type: by_weight(device_type, 0))
    found: dict[Key, Steps] = {}
    for row in rows:
        if row["device_type"] == chosen:
            found.setdefault((row["rank"], row["device"]), Steps()).rows.append(row)
    expected = {row["rank"] for row in where if row["attempt"] == attempt}
    absent = sorted(expected - {rank for rank, _ in found})
    if absent:
        raise CannotTell(f"rank {absent[0]} of {name} ({side.session_id}) has no steps")
    for (rank, _), steps in found.items():
        steps.count, steps.rows = len(steps.rows), steps.rows[WARM_UP_STEPS:]
        if len(steps.rows) < STEPS_LEAST:
            raise CannotTell(
                f"rank {rank} of {name} ({side.session_id}) has {counted(steps.count, 'step')}, at least "
                f"{STEPS_LEAST + WARM_UP_STEPS} are needed: the first {WARM_UP_STEPS} are warm-up"
            )
        steps.every = steps.rows
        steps.rows = [steps.every[place] for place in some_steps(len(steps.every))]
    return found


def _covariate(base: dict[Key, Steps], head: dict[Key, Steps], arguments: Matched) -> str:
    """The column that says what the model was given, for all ranks of both; raises where they differ."""
    if base.keys() != head.keys():
        only = sorted(base.keys() ^ head.keys())[0]
        side = "base" if only in base else "head"
        counts = f"{counted(len(base), 'device')} of all ranks in base, {len(head):,} in head"
        raise CannotTell(f"the devices differ: {only[1]} of rank {only[0]} is in {side} alone ({counts})")
    is_whole = arguments.is_whole or not arguments.is_known
    for by in ("input_bytes", "batch_bytes") if is_whole else ("input_elements",):
        if all(steps.knows(by) for side in (base, head) for steps in side.values()):
            break
    else:
        # With RANKMEM_STEADY the inputs of most steps are not recorded.
        by = "input_bytes" if is_whole else "input_elements"
        for steps in (*base.values(), *head.values()):
            steps.keep_known(by)
            if len(steps.rows) < STEPS_LEAST:
                raise CannotTell(
                    "what the model was given is not known for every step, so steps of equal input cannot be "
                    "found: record with modules (RANKMEM_DETAIL=full) and call the model as a module"
                )
    for (rank, _), steps in base.items():
        own, other = steps.values(by), head[rank, _].values(by)
        if equal_input(own, other) is None:
            raise CannotTell(words.no_overlap(rank, own, other, by))
    return by
