"""What leaks, at which line, how fast, and when the device will be full.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``. :mod:`trend`
defines a leak; here are the series that it judges, those of the lines and operators that made the blocks. In
a rank's total a leak drowns where batches vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankmem_aggregator.insights import leak_text
from rankmem_aggregator.insights.answer import Answer, Ask, Certainty, cannot_tell
from rankmem_aggregator.insights.capacity import usable_bytes
from rankmem_aggregator.insights.leak_groups import (
    CERTAIN_STEPS,
    ENDS,
    Group,
    Track,
    growing,
    matters,
    verdict_of,
)
from rankmem_aggregator.insights.leak_text import AHEAD_STEPS
from rankmem_aggregator.insights.trend import is_long_enough, warm_up
from rankmem_protos.devices import HOST_MEMORY

GRAPH_GROUPS_LEAST: Final = 3
"""So many lines or operators of forward that grow in the same steps are a graph that is kept."""

LEAKING: Final = ("leaks", "grows")
"""Verdicts that are a finding."""
RATES: Final = ("bytes_per_step", "low_bytes_per_step", "high_bytes_per_step")
STEPS_LEFT: Final = ("steps_left", "steps_left_low", "steps_left_high")

SCHEMA: Final = pa.schema(
    [
        ("verdict", pa.string()),
        ("line", pa.string()),
        ("operator", pa.string()),
        ("module", pa.string()),
        ("category", pa.string()),
        ("num_ranks", pa.int64()),
        ("attempt", pa.int64()),
        ("rank", pa.int64()),
        ("device", pa.string()),
        ("bytes_per_step", pa.int64()),
        ("low_bytes_per_step", pa.int64()),
        ("high_bytes_per_step", pa.int64()),
        ("since_step", pa.int64()),
        ("last_step", pa.int64()),
        ("grown_bytes", pa.int64()),
        ("grown_blocks", pa.int64()),
        ("held_bytes", pa.int64()),
        ("bytes_ahead", pa.int64()),
        ("in_graph", pa.bool_()),
        ("grows_each", pa.int64()),
        ("may_go_on", pa.bool_()),
        ("unsure", pa.string()),
    ]
)
"""The rows of the answer. verdict: leaks, grows (it may be no leak: the steps are few, or for the reason in
unsure), negligible, and without a rate: cache (it grows only in steps whose input has a size that none before
had), input (each step makes it anew, as large as its input needs), model (gradients or state of the
optimizer, no more than the parameters explain) and stopped. The figures are those of the rank on which it
grows fastest, of what is no leak those of one on which it may be a leak after all; bytes_ahead: in 10,000
steps; in_graph: part of an autograd graph that is kept; grows_each: the usual number of steps between new
highest values, 0 for a single one; may_go_on: of one that stopped, if it did: the steps end before more was
due, or it came to the end, though less than before; unsure: why it may be no leak though the steps are many,
why a cache may be one, or by what the model bounds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The steps of the ranks, and which of these can be judged."""

    steps: dict[tuple[int, int], list[int]]
    """By attempt and rank the numbers of its steps."""
    rows: list[dict[str, Any]]
    """Those of ``step_tracks``."""
    judged: dict[tuple[int, int], list[int]]
    """Of those the ones with enough steps that hold blocks after them: others have totals alone."""


def leaks_of(ask: Ask, session_id: str, *, rank: int | None = None) -> Answer:
    """What leaks in a session; columns of its rows: :data:`SCHEMA`, the fastest first, then what stopped.

    Args:
        ask: asks a named query.
        session_id: full id of the session.
        rank: of this rank alone.
    """
    tracks = ask("step_tracks", session=session_id, rank=rank).to_pylist()
    steps = {(row["attempt"], row["rank"]): row["steps"] for row in tracks}
    if not any(is_long_enough(len(own)) for own in steps.values()):
        return _cannot(session_id, leak_text.too_few(steps))
    changes = ask("held_after_steps", session=session_id, rank=rank)
    with_blocks = set(zip(changes["attempt"].to_pylist(), changes["rank"].to_pylist(), strict=True))
    judged = {whose: own for whose, own in steps.items() if whose in with_blocks and is_long_enough(len(own))}
    if not judged:
        return _cannot(session_id, leak_text.NO_BLOCKS)
    if changes["line"].null_count == changes["operator"].null_count == changes.num_rows:
        return _cannot(session_id, leak_text.NO_LINES)
    groups = growing(ask, {"session": session_id, "rank": rank}, changes, judged)
    rows = _folded(groups, judged)
    seen = Seen(steps=steps, rows=tracks, judged=judged)
    return _answer(session_id, rows, seen, _devices([g for g in groups if matters(g)], tracks))


def _in_graphs(groups: list[Group]) -> set[int]:
    """The ids of the groups that are parts of graphs: several grow in the same steps on a device."""
    alike: dict[tuple[Track, bytes], list[Group]] = {}
    for group in groups:
        if matters(group) and group.category == "activation":
            start = warm_up(len(group.series))
            when = np.diff(group.blocks[start:]) > 0
            alike.setdefault((group.track, when.tobytes()), []).append(group)
    return {id(each) for own in alike.values() if len(own) >= GRAPH_GROUPS_LEAST for each in own}


def _folded(groups: list[Group], judged: dict[tuple[int, int], list[int]]) -> pa.Table:
    """A row for each verdict, line and operator: of the rank that weighs most (:func:`_weight`)."""
    graphs = _in_graphs(groups)
    found: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        device_type = group.track[2].partition(":")[0]
        found.setdefault((verdict_of(group), group.line, group.operator, device_type), []).append(group)
    rows = []
    for (verdict, line, operator, _), own in found.items():
        top = max(own, key=_weight)
        attempt, rank, device = top.track
        steps, trend, goes_on = judged[attempt, rank], top.trend, verdict not in ENDS
        rows.append(
            {
                "verdict": verdict,
                "line": line,
                "operator": operator,
                "module": top.module,
                "category": top.category,
                "num_ranks": len({group.track[1] for group in own}),
                "attempt": attempt,
                "rank": rank,
                "device": device,
                "bytes_per_step": round(trend.rate) if goes_on else None,
                "low_bytes_per_step": round(trend.low) if goes_on else None,
                "high_bytes_per_step": round(trend.high) if goes_on else None,
                "since_step": steps[trend.first],
                "last_step": steps[trend.last],
                "grown_bytes": trend.grown_bytes,
                "grown_blocks": int(top.blocks[-1] - top.blocks[warm_up(len(top.blocks))]),
                "held_bytes": int(top.series[-1]),
                "bytes_ahead": round(trend.rate * AHEAD_STEPS) if goes_on else None,
                "in_graph": id(top) in graphs,
                "grows_each": trend.interval,
                "may_go_on": trend.may_go_on or trend.slows,
                "unsure": top.unsure,
            }
        )
    order = (*LEAKING, "negligible", *ENDS)
    rows.sort(
        key=lambda r: (order.index(r["verdict"]), -(r["bytes_per_step"] or r["grown_bytes"]), r["line"] or "")
    )
    return pa.Table.from_pylist(rows, SCHEMA)


def leaking_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of an answer's rows that are a finding: what leaks, then what grows."""
    return [row for row in rows if row["verdict"] in LEAKING]


def _weight(group: Group) -> tuple[bool, float, int]:
    """Of a row's groups the heaviest is shown: of what is no leak one that may be a leak after all, then the
    fastest."""
    may_be = verdict_of(group) in ENDS and (group.trend.may_grow or group.unsure is not None)
    return may_be, group.trend.rate, -group.track[1]


def steps_until_full(
    usable_bytes: int, peak_bytes: int | None, rates: Sequence[float]
) -> tuple[int, int, int | None]:
    """In how many steps from the last one a device is full, with the least and the most; None: perhaps never.

    The highest requested bytes of late steps rise by what leaks; fragmentation is not in it.

    Args:
        peak_bytes: the highest of late steps.
        rates: bytes a step, with the ends of their interval.
    """
    room, (rate, low, high) = max(usable_bytes - (peak_bytes or 0), 0), rates
    return int(room / rate), int(room / high), int(room / low) if low > 0 else None


def _devices(groups: list[Group], tracks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices whose lines leak, those first that will be full first, then the fastest.

    What a process holds beyond the allocator stays as it is. Nothing is forecast of host memory, which
    processes share, and of an attempt that is over.
    """
    rates: dict[Track, NDArray[np.float64]] = {}
    verdicts: dict[Track, str] = {}
    for group in groups:
        own = np.array((group.trend.rate, group.trend.low, group.trend.high))
        rates[group.track] = rates.get(group.track, 0.0) + own
        verdicts[group.track] = verdict_of(group)
    latest = {row["rank"]: row["attempt"] for row in sorted(tracks, key=lambda row: row["attempt"])}
    found = []
    for row in tracks:
        track = (row["attempt"], row["rank"], row["device"])
        if track not in rates:
            continue
        own = rates[track].tolist()
        device = {name: row[name] for name in ("attempt", "rank", "device", "peak_bytes")}
        device |= {"verdict": verdicts[track], **dict(zip(RATES, own, strict=True))}
        device |= dict.fromkeys(("usable_bytes", *STEPS_LEFT))
        total = row["device_total_bytes"]
        if row["attempt"] == latest[row["rank"]] and row["device"] not in HOST_MEMORY and total:
            usable = usable_bytes(total, row["app_bytes"])
            left = steps_until_full(usable, row["peak_bytes"], own)
            device |= {"usable_bytes": usable, **dict(zip(STEPS_LEFT, left, strict=True))}
        found.append(device)
    found.sort(
        key=lambda each: (each["steps_left"] is None, each["steps_left"] or 0, -each["bytes_per_step"])
    )
    return found


def _forecast(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """When the first device will be full; empty where no device's size is known."""
    if not devices or devices[0]["steps_left"] is None:
        return {}
    first = devices[0]
    figures = {name: first[name] for name in (*STEPS_LEFT, "usable_bytes")}
    return {**figures, "full_rank": first["rank"], "full_device": first["device"]}


def _answer(session_id: str, rows: pa.Table, seen: Seen, devices: list[dict[str, Any]]) -> Answer:
    judged, told = seen.judged, rows.to_pylist()
    leaking = leaking_of(told)
    is_long = all(len(steps) >= CERTAIN_STEPS for steps in judged.values())
    unsure = leak_text.may_go_on(told)
    bounded = leak_text.may_be_kept(told)
    is_certain = leaking[0]["verdict"] == "leaks" if leaking else is_long and not unsure and not bounded
    certainty: Certainty = "predicted" if is_certain else "suspected"
    looked_at = min(len(steps) - warm_up(len(steps)) for steps in judged.values())
    figures = {
        "num_leaks": len(leaking),
        "num_negligible": sum(row["verdict"] == "negligible" for row in told),
        "num_bounded": sum(row["verdict"] in ("cache", "input", "model") for row in told),
        "num_ranks": len({rank for _, rank in judged}),
        "least_steps_looked_at": looked_at,
        **_forecast(devices),
        "devices": devices,
    }
    return Answer(
        question="leaks",
        session_id=session_id,
        verdict="finding" if leaking else "fine",
        sentence=leak_text.sentence(leaking, figures, unsure),
        certainty=certainty,
        error=leak_text.error(certainty, leaking, unsure, bounded),
        rows=rows,
        figures=figures,
        notes=leak_text.notes(told, figures, seen.steps, seen.judged, seen.rows),
        next_commands=leak_text.next_commands(leaking),
    )


def _cannot(session_id: str, reason: str) -> Answer:
    return cannot_tell("leaks", session_id, reason, SCHEMA, next_commands=("rankmem steps",))
