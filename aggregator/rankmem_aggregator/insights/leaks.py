"""What leaks, at which line, how fast, and when the device will be full.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``. :mod:`trend`
defines a leak; here are the series that it judges, those of the lines and operators that made the blocks. In
a rank's total a leak drowns where batches vary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankmem_aggregator.insights import leak_text
from rankmem_aggregator.insights.answer import Answer, Ask, Certainty, cannot_tell
from rankmem_aggregator.insights.capacity import usable_bytes
from rankmem_aggregator.insights.leak_text import AHEAD_STEPS, NEGLIGIBLE_BYTES
from rankmem_aggregator.insights.trend import Trend, grows_only_in, is_long_enough, trend_of, warm_up
from rankmem_protos.devices import HOST_MEMORY

CERTAIN_STEPS: Final = 60
"""Below so many steps a cache that fills at random still looks like a leak, in 1 of 5 series of 30 steps."""
GRAPH_GROUPS_LEAST: Final = 3
"""So many lines or operators of forward that grow in the same steps are a graph that is kept."""

RATES: Final = ("bytes_per_step", "low_bytes_per_step", "high_bytes_per_step")
STEPS_LEFT: Final = ("steps_left", "steps_left_low", "steps_left_high")

Track = tuple[int, int, str]
"""Attempt, rank, device."""

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
    ]
)
"""The rows of the answer. verdict: leaks, grows (a leak that may still be a cache: few steps), negligible,
cache (it grows only in steps whose input has a size that none before had) and stopped, which have no
rate. The figures are those of the rank on which it grows fastest; bytes_ahead: in
10,000 steps; in_graph: part of an autograd graph that is kept; grows_each: the usual number of steps between
new highest values, 0 for a single one; may_go_on: of one that stopped, if it did: the steps end before more
was due."""


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


def growing(
    ask: Ask, of: dict[str, Any], changes: pa.Table, judged: dict[tuple[int, int], list[int]]
) -> list[Group]:
    """The groups that grow or have grown: what a cache by the size of inputs keeps is told from a leak.

    Args:
        ask: asks a named query.
        of: the session and the rank of which ``changes`` are.
        changes: as in :func:`groups_of`.
        judged: as there.
    """
    groups = [group for group in groups_of(changes, judged) if group.trend.growth != "none"]
    if not any(group.trend.growth == "leak" for group in groups):
        return groups
    new: dict[tuple[int, int], list[list[int]]] = {}
    for row in ask("new_sizes", **of).to_pylist():
        new.setdefault((row["attempt"], row["rank"]), []).append(row["places"])
    return [_told_apart(group, new.get(group.track[:2], [])) for group in groups]


def _told_apart(group: Group, new_sizes: Sequence[Sequence[int]]) -> Group:
    """A group that leaks, or a cache where it grows only in steps with new sizes: of one dimension, say."""
    if group.trend.growth == "leak" and any(grows_only_in(group.series, places) for places in new_sizes):
        return replace(group, trend=replace(group.trend, growth="cache"))
    return group


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


def _verdict(group: Group) -> str:
    if group.trend.growth in ("cache", "stopped"):
        return group.trend.growth
    if not matters(group):
        return "negligible"
    return "leaks" if len(group.series) >= CERTAIN_STEPS else "grows"


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
    """A row for each verdict, line and operator: of the rank on which it grows fastest."""
    graphs = _in_graphs(groups)
    found: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        device_type = group.track[2].partition(":")[0]
        found.setdefault((_verdict(group), group.line, group.operator, device_type), []).append(group)
    rows = []
    for (verdict, line, operator, _), own in found.items():
        top = max(own, key=lambda group: (group.trend.rate, -group.track[1]))
        attempt, rank, device = top.track
        steps, trend, goes_on = judged[attempt, rank], top.trend, verdict not in ("cache", "stopped")
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
                "may_go_on": trend.may_go_on,
            }
        )
    order = ("leaks", "grows", "negligible", "cache", "stopped")
    rows.sort(
        key=lambda r: (order.index(r["verdict"]), -(r["bytes_per_step"] or r["grown_bytes"]), r["line"] or "")
    )
    return pa.Table.from_pylist(rows, SCHEMA)


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
        verdicts[group.track] = _verdict(group)
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
    judged = seen.judged
    leaking = [row for row in rows.to_pylist() if row["verdict"] in ("leaks", "grows")]
    is_long = all(len(steps) >= CERTAIN_STEPS for steps in judged.values())
    unsure = leak_text.may_go_on(rows.to_pylist())
    is_certain = all(row["verdict"] == "leaks" for row in leaking) if leaking else is_long and not unsure
    certainty: Certainty = "predicted" if is_certain else "suspected"
    looked_at = min(len(steps) - warm_up(len(steps)) for steps in judged.values())
    figures = {
        "num_leaks": len(leaking),
        "num_negligible": sum(row["verdict"] == "negligible" for row in rows.to_pylist()),
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
        error=leak_text.error(certainty, bool(leaking), unsure),
        rows=rows,
        figures=figures,
        notes=leak_text.notes(rows.to_pylist(), figures, seen.steps, seen.judged, seen.rows),
        next_commands=leak_text.next_commands(leaking),
    )


def _cannot(session_id: str, reason: str) -> Answer:
    return cannot_tell("leaks", session_id, reason, SCHEMA, next_commands=("rankmem steps",))
