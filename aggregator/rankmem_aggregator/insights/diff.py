"""What a change did to the memory of a job: two sessions, at equal input.

Stage: query, in the reader's process. In: ways to ask named queries of both. Out: an ``Answer``. Steps from
the third on are compared, rank by rank, by :mod:`compare`; what holds the difference is grouped without line
numbers, which move with every edit. Reserved bytes depend on what was freed before: shown, never judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rankmem_aggregator.insights import diff_text as words
from rankmem_aggregator.insights import renamed_classes as classes
from rankmem_aggregator.insights.answer import Answer, Ask, cannot_tell
from rankmem_aggregator.insights.compare import Compared, Judged, Side, compared, equal_input, some_steps
from rankmem_aggregator.insights.moved import Pair, Part, paired
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.quantity_text import counted
from rankmem_protos.devices import by_weight

WARM_UP_STEPS: Final = 2
"""The optimizer's state comes in the first, caches fill in the second."""
STEPS_LEAST: Final = 3
SHARE_LIMIT: Final = 0.005
BYTES_LIMIT: Final = 64 << 10
"""Without a limit of the user's, a figure is worse beyond both, and beyond :data:`ERRORS` standard errors."""
ERRORS: Final = 3.0
PART_BYTES_LEAST: Final = 1024
PARTS_MAX: Final = 12
PART_STEPS_MAX: Final = 24
"""Steps of a side whose blocks are looked at."""
FIGURES: Final = ("peak", "held", "allocated")
JUDGED: Final = ("peak", "held")
"""Those for which a side can be worse without a limit of the user's."""

SCHEMA: Final = pa.schema(
    [
        ("what", pa.string()),
        ("rank", pa.int64()),
        ("device", pa.string()),
        ("category", pa.string()),
        ("file", pa.string()),
        ("function", pa.string()),
        ("operator", pa.string()),
        ("module", pa.string()),
        ("moved_from", pa.string()),
        ("base_bytes", pa.int64()),
        ("head_bytes", pa.int64()),
        ("difference_bytes", pa.int64()),
        ("share", pa.float64()),
        ("limit_bytes", pa.int64()),
        ("verdict", pa.string()),
    ]
)
"""The rows of the answer, of the rank that changed most for the worse. what: peak (of a step), held (at the
step's end), allocated (in it), reserved (the highest of the session), or part: the blocks at the peak that
share category, file, function, operator and module, and of base those that were these before they moved.
moved_from: the file, function or module in base, where it is another one; share: of base_bytes; limit_bytes:
from which on it counts; verdict: worse, same, better, unclear (beyond a limit of the user's, but within the
error); NULL where none is given."""


class Limit(NamedTuple):
    """How much worse a figure may get: both, where both are given."""

    share: float = 0.0
    size_bytes: int = 0


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
    count: int = 0
    """Of all, those of the warm-up too."""
    num_unknown: int = 0
    """Steps that are left out since their input is not recorded."""

    def values(self, name: str) -> Any:
        """A column of them."""
        return np.array([row[name] for row in self.rows], np.float64)

    def given(self, by: str) -> Side:
        """What the model was given, in bytes by this column."""
        named = by == "input_bytes"
        return Side(bytes=self.values(by), names=[row["inputs"] if named else None for row in self.rows])

    def knows(self, by: str) -> bool:
        """Whether this column has what every step was given."""
        return all(row[by] for row in self.rows)

    def keep_known(self, by: str) -> None:
        """Leaves out the steps without a value in this column."""
        known = [row for row in self.rows if row[by]]
        self.num_unknown, self.rows = len(self.rows) - len(known), known


Key = tuple[int, str]
"""Rank and device."""


def diff_of(base: Recorded, head: Recorded, limits: Mapping[str, Limit] | None = None) -> Answer:
    """What of a session got worse since another one; columns of its rows: :data:`SCHEMA`.

    Args:
        base, head: the sessions, before and after.
        limits: by figure (peak, held, allocated) how much worse it may get.
    """
    figures: dict[str, Any] = {"base": str(base.session_id), "head": str(head.session_id)}
    try:
        sides = _sides(base, head)
        by = _covariate(sides["base"], sides["head"])
        judged = _judge_all(sides, by, limits)
        figures |= _figures(judged, sides, by)
        worst = _worst(judged)
        own = [each for each in judged if (each.rank, each.device) == worst]
        of_worst = [sides[name][worst] for name in ("base", "head")]
        rows = [_row(each) for each in own]
        parts, changes = _parts(base, head, of_worst[0], of_worst[1], by)
        rows += _reserved(base, head, worst) + parts
        figures |= changes
    except CannotTell as why:
        return cannot_tell("diff", head.session_id, str(why), SCHEMA, figures=figures)
    verdicts = {each.verdict for each in judged}
    unclear = "unclear" in verdicts and "worse" not in verdicts
    return Answer(
        question="diff",
        session_id=head.session_id,
        verdict="finding" if "worse" in verdicts else "cannot tell" if unclear else "fine",
        sentence=words.sentence(own, figures),
        certainty=None if unclear else "predicted",
        error=words.error(own, by),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=tuple(words.notes(figures)),
        next_commands=(f"rankmem steps --rank {worst[0]}", f"rankmem ops --rank {worst[0]}"),
    )


def _sides(base: Recorded, head: Recorded) -> dict[str, dict[Key, Steps]]:
    both = {"base": base, "head": head}
    for name, side in both.items():
        if side.complete is False:
            lacks = "; ".join(side.missing[:3])
            raise CannotTell(
                f"{name} ({side.session_id}) is incomplete, so its figures may be wrong: {lacks}"
            )
    return {name: _steps(side, name) for name, side in both.items()}


def _judge_all(
    sides: dict[str, dict[Key, Steps]], by: str, limits: Mapping[str, Limit] | None
) -> list[Judged]:
    return [
        each
        for key in sorted(sides["base"])
        for each in judge_steps(key, sides["base"][key], sides["head"][key], by, limits)
    ]


def _steps(side: Recorded, name: str) -> dict[Key, Steps]:
    """The steady steps of each rank on the kind of device that counts, by rank and device."""
    where = side.ask("rank_coordinates", session=side.session_id).to_pylist()
    rows = side.ask("steps_with_inputs", session=side.session_id).to_pylist()
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
        steps.rows = [steps.rows[place] for place in some_steps(len(steps.rows))]
    return found


def _covariate(base: dict[Key, Steps], head: dict[Key, Steps]) -> str:
    """The column that says what the model was given, for all ranks of both; raises where they differ."""
    if base.keys() != head.keys():
        only = sorted(base.keys() ^ head.keys())[0]
        side = "base" if only in base else "head"
        counts = f"{len(base)} of ranks in base, {len(head)} in head"
        raise CannotTell(f"the devices differ: {only[1]} of rank {only[0]} is in {side} alone ({counts})")
    for by in ("input_bytes", "batch_bytes"):
        if all(steps.knows(by) for side in (base, head) for steps in side.values()):
            break
    else:
        # With RANKMEM_STEADY the inputs of most steps are not recorded.
        by = "input_bytes"
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
            raise CannotTell(words.no_overlap(rank, own, other))
    return by


def judge_steps(
    key: Key, base: Steps, head: Steps, by: str, limits: Mapping[str, Limit] | None = None
) -> list[Judged]:
    """The figures of a rank: its steady steps on both sides, and the column that has their inputs."""
    found = []
    for what in FIGURES:
        column = f"{what}_bytes"
        figure = compared(base.given(by), base.values(column), head.given(by), head.values(column))
        limit, verdict = verdict_of(figure, (limits or {}).get(what), is_judged=what in JUDGED)
        found.append(
            Judged(what=what, rank=key[0], device=key[1], figure=figure, limit=limit, verdict=verdict)
        )
    return found


def verdict_of(figure: Compared, limit: Limit | None, *, is_judged: bool) -> tuple[float, str | None]:
    """The bytes from which on a difference counts, and what it is."""
    own = limit if limit is not None else Limit(SHARE_LIMIT, BYTES_LIMIT)
    least, error = max(own.share * figure.base, own.size_bytes), ERRORS * figure.error
    if limit is None and not is_judged:
        return max(least, error), None
    if figure.difference > max(least, error):
        return max(least, error), "worse"
    if limit is not None and figure.difference > least:
        return least, "unclear"
    return max(least, error), "better" if -figure.difference > max(least, error) else "same"


def _worst(judged: list[Judged]) -> Key:
    """The rank that changed most for the worse."""
    order = {"worse": 0, "unclear": 1}
    first = min(
        judged,
        key=lambda each: (order.get(each.verdict or "", 2), each.what != "peak", -each.figure.difference),
    )
    return first.rank, first.device


def _figures(judged: list[Judged], sides: dict[str, dict[Key, Steps]], by: str) -> dict[str, Any]:
    by_verdict = {
        verdict: sorted({each.rank for each in judged if each.verdict == verdict})
        for verdict in ("worse", "unclear", "better")
    }
    steps = {name: min(len(each.rows) for each in side.values()) for name, side in sides.items()}
    inputs = {
        f"{name}_input_bytes": [
            int(min(each.values(by).min() for each in side.values())),
            int(max(each.values(by).max() for each in side.values())),
        ]
        for name, side in sides.items()
    }
    return {
        "num_ranks": len({rank for rank, _ in sides["base"]}),
        "ranks_worse": by_verdict["worse"],
        "ranks_unclear": by_verdict["unclear"],
        "ranks_better": by_verdict["better"],
        "base_steps": steps["base"],
        "head_steps": steps["head"],
        "input": by,
        "base_steps_unknown": max(each.num_unknown for each in sides["base"].values()),
        "head_steps_unknown": max(each.num_unknown for each in sides["head"].values()),
        **inputs,
    }


def _row(each: Judged) -> dict[str, Any]:
    return {
        "what": each.what,
        "rank": each.rank,
        "device": each.device,
        **_bytes(each.figure),
        "limit_bytes": round(each.limit),
        "verdict": each.verdict,
    }


def _bytes(figure: Compared) -> dict[str, Any]:
    base, head = round(figure.base), round(figure.head)
    share = (head - base) / base if base else None
    return {"base_bytes": base, "head_bytes": head, "difference_bytes": head - base, "share": share}


def _reserved(base: Recorded, head: Recorded, key: Key) -> list[dict[str, Any]]:
    """The highest that the allocator reserved; nothing where it keeps no pool."""
    if key[1].partition(":")[0] == "cpu":
        return []
    highest = []
    for side in (base, head):
        rows = side.ask("peak", session=side.session_id, rank=key[0], attempt=None).to_pylist()
        own = [row["peak_reserved_bytes"] for row in rows if (row["rank"], row["device"]) == key]
        highest.append(max((each for each in own if each is not None), default=None))
    if highest[0] is None or highest[1] is None:
        return []
    figure = Compared(base=highest[0], head=highest[1], error=0.0)
    return [{"what": "reserved", "rank": key[0], "device": key[1], **_bytes(figure)}]


def _parts(
    base: Recorded, head: Recorded, of_base: Steps, of_head: Steps, by: str
) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """What the blocks at the peak hold more or less, the largest first; what was moved or replaced."""
    some = [
        Steps(rows=[each.rows[i] for i in some_steps(len(each.rows), PART_STEPS_MAX)])
        for each in (of_base, of_head)
    ]
    held = [_held(side, steps) for side, steps in zip((base, head), some, strict=True)]
    given = [steps.given(by) for steps in some]
    if equal_input(given[0].bytes, given[1].bytes) is None:
        return [], {"moved": [], "replaced": [], "unmatched": []}
    nothing = [np.zeros(len(steps.rows)) for steps in some]
    found = []
    pairs, names, others = _pairs((base, head), held, some)
    for pair in pairs:
        own = sum((held[0][part] for part in pair.base), nothing[0])
        other = sum((held[1][part] for part in pair.head), nothing[1])
        figure = compared(given[0], own, given[1], other)
        if abs(figure.difference) > max(ERRORS * figure.error, PART_BYTES_LEAST):
            found.append(pair.name()._asdict() | {"moved_from": pair.moved_from()} | _bytes(figure))
    found.sort(key=lambda row: (-abs(row["difference_bytes"]), str(row)))
    place = {"what": "part", "rank": of_base.rows[0]["rank"], "device": of_base.rows[0]["device"]}
    told = []
    for each in others:
        own = sum((held[0][part] for part in held[0] if each.holds(names.module(part.module))), nothing[0])
        other = sum((held[1][part] for part in held[1] if each.holds(part.module)), nothing[1])
        told.append(words.replaced(each, compared(given[0], own, given[1], other)))
    changes = {"moved": words.moved(pairs), "replaced": told, "unmatched": words.unmatched(names.moved)}
    return [place | row for row in found[:PARTS_MAX]], changes


def _pairs(
    sides: Sequence[Recorded], held: Sequence[dict[Part, Any]], steps: Sequence[Steps]
) -> tuple[list[Pair], classes.Renamed, list[classes.Replaced]]:
    """The parts in pairs; the renamed and replaced classes, asked for where a side alone has something."""
    own, other = held
    if own.keys() <= other.keys() or other.keys() <= own.keys():
        return paired(own, other), classes.Renamed(), []
    base, head = (_code(*each) for each in zip(sides, held, steps, strict=True))
    names = classes.renamed(base, head)
    return paired(own, other, names), names, classes.replaced(base, head, names)


def _code(side: Recorded, held: Iterable[Part], steps: Steps) -> classes.Code:
    """What names the code of a side: its modules' classes, and what made its parts and a step's blocks."""
    step = steps.rows[-1]
    place = {name: step[name] for name in ("attempt", "rank")}
    rows = side.ask("code_of_step", session=side.session_id, **place, step=step["step"]).to_pylist()
    made = {classes.Made(**row) for row in rows} | {part.made() for part in held}
    return classes.Code(
        classes=classes.classes_of(side.ask, side.session_id, **place),
        made=made,
        shapes=classes.shapes_of(side.ask, side.session_id, **place),
    )


def _held(side: Recorded, steps: Steps) -> dict[Part, Any]:
    """By what shares a group, its bytes at the peak of each of these steps."""
    points = [
        {name: row[name] for name in ("attempt", "rank", "device")} | {"seq": row["peak_seq"]}
        for row in steps.rows
    ]
    places = {row["peak_seq"]: place for place, row in enumerate(steps.rows)}
    found: dict[Part, Any] = {}
    for row in side.ask("held_at_steps", session=side.session_id, points=json.dumps(points)).to_pylist():
        own = found.setdefault(Part(*(row[name] for name in Part._fields)), np.zeros(len(points)))
        own[places[row["point_seq"]]] += row["live_bytes"]
    return found
