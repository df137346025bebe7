"""Why ranks differ: what their coordinates explain, which ranks stand out, and what those hold more.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``. :mod:`peers`
decides which ranks stand out; here bytes become its arrays, each rank at its own peak, and a difference
becomes its parts, which add up to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankmem_aggregator.insights import imbalance_text as words
from rankmem_aggregator.insights.answer import Answer, Ask, cannot_tell
from rankmem_aggregator.insights.explaining import (
    FLOOR_BYTES,
    FLOOR_SHARE,
    Labels,
    dense,
    inferred,
    medians,
)
from rankmem_aggregator.insights.peers import Level, Standing, median_peer, standing_of, with_pairs
from rankmem_protos.devices import by_weight

COORDINATES: Final = ("dp", "tp", "pp", "cp", "ep")
RANKS_LEAST: Final = 8
"""Among fewer the noise of peers is not known."""
STAGE_RANKS_LEAST: Final = 4
"""Stages of a pipeline differ by design: with fewer ranks each has no peers."""


SCHEMA: Final = pa.schema(
    [
        ("what", pa.string()),
        ("num_ranks", pa.int64()),
        ("rank", pa.int64()),
        ("host_name", pa.string()),
        ("bytes", pa.int64()),
        ("beyond_bytes", pa.int64()),
        ("peer_rank", pa.int64()),
        ("difference_bytes", pa.int64()),
        ("parts", pa.list_(pa.struct([("group_name", pa.string()), ("bytes", pa.int64())]))),
    ]
)
"""The rows of the answer. what: "rank 120", or a level whose ranks stand out together, "host node-3",
"dp 17"; of a level rank is its median one. bytes: at the rank's own peak; beyond_bytes: more than its
coordinates explain; difference_bytes: more than peer_rank, and parts add up to exactly that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What each rank held at its own peak; columns of the matrix are ranks."""

    ranks: NDArray[np.int64]
    names: list[str | None]
    """Of the groups, the rows of the matrix."""
    held: NDArray[np.int64]
    totals: NDArray[np.int64]
    """Of each rank; the groups add up to it."""
    hosts: list[str]
    levels: dict[str, list[int]]
    """By coordinate that every rank reported its value."""
    num_with_coordinates: int
    partly_known: dict[str, int]
    """By coordinate that some ranks reported, and others not, how many did."""
    device_type: str
    num_left_out: int
    """Ranks of the session without blocks on such devices."""
    world_size: int
    attempts: set[int]

    def labels(self) -> dict[str, Labels]:
        """The coordinates that differ, numbered from 0."""
        return {name: dense(np.array(own)) for name, own in self.levels.items() if len(set(own)) > 1}


def imbalance_of(ask: Ask, session_id: str, *, by: str = "category") -> Answer:
    """Which ranks of a session stand out from their peers; columns of its rows: :data:`SCHEMA`.

    Args:
        ask: asks a named query.
        session_id: full id of the session.
        by: what the parts of a difference are; a grouping of blocks.
    """
    where = ask("rank_coordinates", session=session_id).to_pylist()
    job = _job(ask("held_at_own_peaks", session=session_id, by=by), where)
    if job is None:
        return _cannot(session_id, words.NO_EVENTS, {})
    if len(job.ranks) < RANKS_LEAST:
        reason = words.too_few(len(job.ranks), RANKS_LEAST, job.device_type, job.num_left_out)
        return _cannot(session_id, reason, _spread(job))
    labels = job.labels()
    if "pp" in labels and np.bincount(labels["pp"]).min() < STAGE_RANKS_LEAST:
        small = int(np.bincount(labels["pp"]).min())
        return _cannot(session_id, words.no_peers(small, STAGE_RANKS_LEAST), _spread(job))
    totals = job.totals.astype(np.float64)
    hosts = {"host": dense(np.array(job.hosts))}
    if labels:
        own = with_pairs(labels)
        # Experts load their groups unequally by design: a group that is just a host is named first.
        standing = standing_of(totals, labels, {**own, **hosts} if "ep" in labels else {**hosts, **own})
    else:
        standing = standing_of(totals, inferred(totals, job.ranks, job.world_size), hosts)
    rows = [_level_row(job, standing, level) for level in standing.levels]
    rows += [_row(job, standing, int(index), standing.ranks) for index in standing.ranks]
    running = sum(row["is_running"] for row in where)
    return _answer(session_id, job, standing, rows, is_inferred=not labels, num_running=running)


def _job(groups: pa.Table, where: list[dict[str, Any]]) -> Job | None:
    """The matrix of the type of device that matters most; None without events."""
    rows = groups.to_pylist()
    if not rows:
        return None
    peaks: dict[str, int] = {}
    for row in rows:
        peaks[row["device_type"]] = max(peaks.get(row["device_type"], 0), row["rank_peak_bytes"])
    device_type = min(peaks, key=lambda name: by_weight(name, peaks[name]))
    rows = [row for row in rows if row["device_type"] == device_type]
    top: dict[int, tuple[int, str, int]] = {}
    for row in rows:
        mine = (row["rank_peak_bytes"], row["device"], row["attempt"])
        if row["rank"] not in top or mine[0] > top[row["rank"]][0]:
            top[row["rank"]] = mine
    ranks = sorted(top)
    index = {rank: place for place, rank in enumerate(ranks)}
    names = sorted({row["group_name"] for row in rows}, key=lambda name: (name is None, name or ""))
    place_of = {name: place for place, name in enumerate(names)}
    held = np.zeros((len(names), len(ranks)), np.int64)
    for row in rows:
        if top[row["rank"]][1:] == (row["device"], row["attempt"]):
            held[place_of[row["group_name"]], index[row["rank"]]] += row["bytes_at_rank_peak"]
    totals = np.array([top[rank][0] for rank in ranks])
    rest = totals - held.sum(axis=0)
    if rest.any():  # older blocks of an imported recording, of which only the total is known
        names, held = [*names, words.NOT_IN_BLOCKS], np.vstack([held, rest])
    of_rank = {(row["attempt"], row["rank"]): row for row in where}
    own = [of_rank.get((top[rank][2], rank), {}) for rank in ranks]
    known: dict[str, list[Any]] = {name: [row.get(name) for row in own] for name in COORDINATES}
    announced = max((row.get("world_size") or 0 for row in own), default=0)
    return Job(
        ranks=np.array(ranks),
        names=names,
        held=held,
        totals=totals,
        hosts=[row.get("host_name") or "" for row in own],
        levels={name: levels for name, levels in known.items() if None not in levels},
        partly_known=_partly_known(known),
        num_with_coordinates=sum(any(row.get(name) is not None for name in COORDINATES) for row in own),
        device_type=device_type,
        num_left_out=len({row["rank"] for row in where} - set(ranks)),
        world_size=max(announced, ranks[-1] + 1),
        attempts={attempt for _, _, attempt in top.values()},
    )


def _partly_known(known: dict[str, list[Any]]) -> dict[str, int]:
    num_known = {name: sum(level is not None for level in levels) for name, levels in known.items()}
    return {name: number for name, number in num_known.items() if 0 < number < len(known[name])}


def _row(job: Job, standing: Standing, index: int, without: Labels) -> dict[str, Any]:
    """A rank that stands out, against one of its peers."""
    peer = median_peer(job.totals.astype(np.float64), standing, index, without)
    change = job.held[:, index] - (job.held[:, peer] if peer is not None else 0)
    parts = [
        {"group_name": job.names[place], "bytes": int(change[place])}
        for place in np.argsort(-np.abs(change), kind="stable")
        if change[place]
    ]
    return {
        "what": f"rank {job.ranks[index]}",
        "num_ranks": 1,
        "rank": int(job.ranks[index]),
        "host_name": job.hosts[index],
        "bytes": int(job.totals[index]),
        "beyond_bytes": round(float(standing.beyond[index])),
        "peer_rank": None if peer is None else int(job.ranks[peer]),
        "difference_bytes": sum(part["bytes"] for part in parts),
        "parts": parts,
    }


def _level_row(job: Job, standing: Standing, level: Level) -> dict[str, Any]:
    """A level whose ranks stand out together, shown by its median rank."""
    rest = np.abs(standing.beyond[level.ranks])
    middle = int(level.ranks[np.argmin(rest)])
    row = _row(job, standing, middle, np.union1d(level.ranks, standing.ranks))
    if level.coordinate == "host":
        what = f"host {job.hosts[middle]}"
    else:
        names = level.coordinate.split(", ")
        what = ", ".join(f"{name} {job.levels[name][middle]}" for name in names)
    return {**row, "what": what, "num_ranks": len(level.ranks), "beyond_bytes": round(level.beyond)}


def _odd_host(job: Job) -> tuple[str, int] | None:
    """The host whose ranks all hold more, or all less, than the others', which agree; and by how much.

    Where hosts and stages or replicas are the same ranks, the bytes do not tell a fault from the layout.
    """
    labels = dense(np.array(job.hosts))
    own = medians(job.totals.astype(np.float64), labels)
    if len(own) <= 2 or {"pp", "ep"} & job.levels.keys():
        return None  # stages, and experts, differ by design
    least = max(FLOOR_BYTES, FLOOR_SHARE * float(np.median(job.totals)))
    for level, bytes_ in enumerate(own):
        others = np.delete(own, level)
        beyond = job.totals[labels == level] - float(np.median(others))
        if np.ptp(others) <= least and (np.all(beyond > least) or np.all(beyond < -least)):
            return job.hosts[int(np.argmax(labels == level))], round(bytes_ - float(np.median(others)))
    return None


def _peak_without(job: Job, standing: Standing) -> int:
    """The highest peak, each rank's less what it, or its level, holds beyond its peers."""
    beyond = np.maximum(job.totals - standing.expected - standing.beyond, 0)  # of levels
    beyond[standing.ranks] += np.maximum(standing.beyond[standing.ranks], 0)
    return round(float((job.totals - beyond).max()))


def _spread(job: Job) -> dict[str, Any]:
    """The highest and the lowest rank, and what the one holds more, by group: exact."""
    highest, lowest = int(np.argmax(job.totals)), int(np.argmin(job.totals))
    change = job.held[:, highest] - job.held[:, lowest]
    return {
        "num_ranks": len(job.ranks),
        "highest_rank": int(job.ranks[highest]),
        "lowest_rank": int(job.ranks[lowest]),
        "difference_bytes": int(job.totals[highest] - job.totals[lowest]),
        "parts": {
            str(job.names[place]): int(change[place])
            for place in np.argsort(-np.abs(change), kind="stable")
            if change[place]
        },
        "device_type": job.device_type,
        "num_left_out": job.num_left_out,
    }


def _answer(
    session_id: str,
    job: Job,
    standing: Standing,
    rows: list[dict[str, Any]],
    *,
    is_inferred: bool,
    num_running: int,
) -> Answer:
    odd = None if rows else _odd_host(job)
    out = np.unique(np.concatenate([standing.ranks, *(level.ranks for level in standing.levels)]))
    figures = {
        **_spread(job),
        "peak_bytes": int(job.totals.max()),
        "peak_without_bytes": _peak_without(job, standing),
        "shares": dict(standing.shares),
        "is_inferred": is_inferred,
        "num_with_coordinates": job.num_with_coordinates,
        "num_standing_out": len(out),
        "num_small": len(standing.small),
        "small_rank": int(job.ranks[standing.small[0]]) if len(standing.small) else None,
        "small_bytes": round(float(standing.beyond[standing.small[0]])) if len(standing.small) else None,
        "odd_host": None if odd is None else odd[0],
        "odd_host_bytes": None if odd is None else odd[1],
        "partly_known": job.partly_known,
    }
    return Answer(
        question="imbalance",
        session_id=session_id,
        verdict="finding" if rows else "fine",
        sentence=words.sentence(rows, figures),
        certainty="suspected",
        error=words.ERROR,
        rows=pa.Table.from_pylist(rows, SCHEMA),
        figures=figures,
        notes=words.notes(figures, len(job.attempts), num_running),
        next_commands=words.next_commands(rows),
    )


def _cannot(session_id: str, reason: str, figures: dict[str, Any]) -> Answer:
    return cannot_tell(
        "imbalance",
        session_id,
        reason,
        SCHEMA,
        figures=figures,
        notes=(*words.spread(figures), *words.left_out(figures)) if figures else (),
        next_commands=("rankmem peak --by category",),
    )
