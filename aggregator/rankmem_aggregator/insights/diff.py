"""What a change did to the memory of a job: two sessions, at equal input.

Stage: query, in the reader's process. In: ways to ask named queries of both. Out: an ``Answer``. Steps from
the third on are compared, rank by rank, by :mod:`compare`; what holds the difference is grouped without line
numbers, which move with every edit. Reserved bytes depend on what was freed before: shown, never judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.insights import diff_text as words
from rankmem_aggregator.insights import renamed_classes as classes
from rankmem_aggregator.insights.answer import Answer, cannot_tell
from rankmem_aggregator.insights.compare import Compared, Judged, compared, equal_input, some_steps
from rankmem_aggregator.insights.diff_highest import highest_figures, judge_highest
from rankmem_aggregator.insights.diff_limits import ERRORS, Limit, verdict_of
from rankmem_aggregator.insights.diff_steps import Key, Recorded, Sides, Steps, sides_of
from rankmem_aggregator.insights.moved import Pair, Part, paired
from rankmem_aggregator.insights.reading import CannotTell

PART_BYTES_LEAST: Final = 1024
PARTS_MAX: Final = 12
NO_PARTS: Final[Mapping[str, Any]] = {
    "moved": [], "replaced": [], "unmatched": [],
    "num_parts": 0, "num_parts_shown": 0, "parts_difference_bytes": 0,
}  # fmt: skip
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
"""The rows of the answer, of the rank that changed most for the worse. what: peak (of a step), highest (the
highest step at equal input; judged where a limit for the peak is given), held (at the step's end), allocated
(in it), reserved (the highest of the session), or part: the blocks at the peak that
share category, file, function, operator and module, and of base those that were these before they moved.
moved_from: the file, function or module in base, where it is another one; share: of base_bytes; limit_bytes:
from which on it counts; verdict: worse, same, better, unclear (beyond a limit of the user's, but within the
error, or in so few steps that it may be chance); NULL where none is given."""


def diff_of(base: Recorded, head: Recorded, limits: Mapping[str, Limit] | None = None) -> Answer:
    """What of a session got worse since another one; columns of its rows: :data:`SCHEMA`.

    Args:
        base, head: the sessions, before and after.
        limits: by figure (peak, held, allocated) how much worse it may get.
    """
    figures: dict[str, Any] = {"base": str(base.session_id), "head": str(head.session_id)}
    try:
        sides = sides_of(base, head)
        by = sides.by
        judged = _judge_all(sides, limits)
        figures |= _figures(judged, sides)
        worst = _worst(judged)
        own = [each for each in judged if (each.rank, each.device) == worst]
        of_worst = sides.base[worst], sides.head[worst]
        figures |= highest_figures(*of_worst, by)
        rows = [_row(each) for each in own]
        parts, changes = _parts(base, head, *of_worst, by)
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
        certainty=None if unclear else "predicted" if _is_sure(sides) else "suspected",
        error=words.error(own, by),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=(*words.highest_notes(own, figures), *words.notes(figures)),
        next_commands=(f"rankmem steps --rank {worst[0]}", f"rankmem ops --rank {worst[0]}"),
    )


def _judge_all(sides: Sides, limits: Mapping[str, Limit] | None) -> list[Judged]:
    return [
        each
        for key in sorted(sides.base)
        for each in judge_steps(key, sides.base[key], sides.head[key], sides.by, limits)
    ]


def _is_sure(sides: Sides) -> bool:
    """Whether the steps that are compared are known to have been given as much."""
    return sides.by != "batch_bytes" and sides.arguments.is_sure


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
    highest = judge_highest(key, base, head, by, (limits or {}).get("peak"))
    return found if highest is None else [found[0], highest, *found[1:]]


def _worst(judged: list[Judged]) -> Key:
    """The rank that changed most for the worse."""
    order = {"worse": 0, "unclear": 1}

    def rank_of(each: Judged) -> tuple[int, bool, float]:
        found = order.get(each.verdict or "", 2 if words.is_higher(each) else 3)
        return found, each.what != "peak", -each.figure.difference

    first = min(judged, key=rank_of)
    return first.rank, first.device


def _figures(judged: list[Judged], sides: Sides) -> dict[str, Any]:
    by_verdict = {
        verdict: sorted({each.rank for each in judged if each.verdict == verdict})
        for verdict in ("worse", "unclear", "better")
    }
    found: dict[str, Any] = {
        "num_ranks": len({rank for rank, _ in sides.base}),
        "ranks_worse": by_verdict["worse"],
        "ranks_unclear": by_verdict["unclear"],
        "ranks_better": by_verdict["better"],
        "input": sides.by,
        "left_out": list(sides.arguments.left_out),
        "retyped": list(sides.arguments.retyped),
        "renamed": list(sides.arguments.renamed),
        "other_lists": list(sides.arguments.other_lists),
    }
    unit = "elements" if sides.by == "input_elements" else "bytes"
    for name, side in (("base", sides.base), ("head", sides.head)):
        sizes = [each.values(sides.by) for each in side.values()]
        found[f"{name}_input_{unit}"] = [
            int(min(own.min() for own in sizes)),
            int(max(own.max() for own in sizes)),
        ]
        found[f"{name}_steps"] = min(len(each.rows) for each in side.values())
        found[f"{name}_steps_unknown"] = max(each.num_unknown for each in side.values())
    return found


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
) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    """What the blocks at the peak hold more or less, the largest first; what was moved or replaced."""
    some = [
        Steps(rows=[each.rows[i] for i in some_steps(len(each.rows), PART_STEPS_MAX)])
        for each in (of_base, of_head)
    ]
    held = [_held(side, steps) for side, steps in zip((base, head), some, strict=True)]
    given = [steps.given(by) for steps in some]
    if equal_input(given[0].sizes, given[1].sizes) is None:
        return [], NO_PARTS
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
    shown = [place | row for row in found[:PARTS_MAX]]
    changes = {
        "moved": words.moved(pairs),
        "replaced": told,
        "unmatched": words.unmatched(names.moved),
        "num_parts": len(found),
        "num_parts_shown": len(shown),
        "parts_difference_bytes": sum(row["difference_bytes"] for row in found),
    }
    return shown, changes


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
