"""Which ranks behave differently from their group, and how.

Stage: page, in the thread of a request. In: the matrix of ``/heat`` with :data:`BINS` intervals; out: the
ranks furthest from the median of their group, each with a reason. Deviations are bytes: a rank minus the
median of its group in the same interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page import rank_matrix
from rankmem_aggregator.page.answers.heat import FIGURES
from rankmem_aggregator.page.parameters import DEVICE_TYPE, TIME, check_range, choice, integer, parameter
from rankmem_aggregator.page.rank_matrix import GROUPS, Floats, Places, RankMatrix
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.whole_session import first_device_type

BINS: Final = 240
"""Intervals that a rank's course is judged by."""
ODD_MAX: Final = 20
USUAL_TIMES: Final = 6.0
"""A rank is odd if it is off by so many times what is usual in its group: its members' median."""
LEAST_SHARE: Final = 0.005
"""Nor is it odd if it is off by less than this share of its group's median."""
LEAST_BYTES: Final = 1 << 20
TREND_SHARE: Final = 0.5
"""It is called growing or fell if it changed by at least this share of its largest deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OddAsked:
    """Parameters of ``/odd``."""

    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    figure: str = parameter(choice(FIGURES), "which bytes", default="requested")
    device_type: str | None = parameter(DEVICE_TYPE, "type of device, as in /heat", default=None)
    group: str = parameter(choice(GROUPS), "whose median", default="job")
    limit: int = parameter(integer(1, ODD_MAX), "ranks, at most", default=ODD_MAX)


def odd(reading: Reading, asked: OddAsked) -> pa.Table:
    """The odd ranks, the furthest off first.

    Columns: rank, host_name, group (its group's name), reason (high, low, growing or fell), off_bytes (by
    how much it is off, signed), level_bytes (median of its deviations), change_bytes (median of the
    deviations in the last quarter of what is known of it minus that in the first), top_bytes (its highest
    minus the median of its group's highest), median_bytes (median over time of its group's median),
    since_ns (begin of the interval from which it is off by half of that), times (how many times as far off
    as is usual in its group). Facts: num_ranks, num_groups.
    """
    check_range(asked.from_ns, asked.until_ns)
    places = Places.of(reading)
    origin_ns = reading.session.origin_ns
    bins = rank_matrix.bins_of(origin_ns + asked.from_ns, origin_ns + asked.until_ns, BINS, len(places.rows))
    device_type = asked.device_type or first_device_type(reading)
    matrix = rank_matrix.held(reading, places, bins, device_type, asked.figure)
    groups = places.named(matrix.ranks, asked.group)
    found = judged(matrix, groups)
    length_ns = (asked.until_ns - asked.from_ns) / bins.count
    rows = [
        {
            "rank": int(matrix.ranks[each["place"]]),
            "host_name": places.last(int(matrix.ranks[each["place"]])).get("host_name"),
            "group": groups[each["place"]],
            "since_ns": asked.from_ns + int(each["since"] * length_ns),
            **{name: each[name] for name in ODD_SCHEMA.names if name in each},
        }
        for each in found[: asked.limit]
    ]
    return reading.answer(
        pa.Table.from_pylist(rows, schema=ODD_SCHEMA),
        exact=matrix.exact,
        source=matrix.source,
        num_ranks=len(matrix.ranks),
        num_groups=len(set(groups)),
        num_odd=len(found),
    )


ODD_SCHEMA: Final = pa.schema(
    [
        ("rank", pa.int32()),
        ("host_name", pa.string()),
        ("group", pa.string()),
        ("reason", pa.string()),
        ("off_bytes", pa.int64()),
        ("level_bytes", pa.int64()),
        ("change_bytes", pa.int64()),
        ("top_bytes", pa.int64()),
        ("median_bytes", pa.int64()),
        ("since_ns", pa.int64()),
        ("times", pa.float64()),
    ]
)


def judged(matrix: RankMatrix, groups: list[str | None]) -> list[dict[str, Any]]:
    """The odd ranks of a matrix, the furthest off first: their place in it, and what :func:`odd` states."""
    if not matrix.cells.size:
        return []
    middle = rank_matrix.medians(matrix, groups)
    off = np.where(matrix.known, matrix.cells - middle, np.nan)
    measures = np.stack([*_level_and_change(off), _tops(matrix, groups)], axis=1)
    furthest = np.abs(measures).max(axis=1)
    usual = _usual(furthest, middle, groups)
    found = []
    for place in np.flatnonzero(furthest >= USUAL_TIMES * usual):
        level, change, top = measures[place]
        reason, by = _reason(level, change, top)
        found.append(
            {
                "place": int(place),
                "reason": reason,
                "off_bytes": round(by),
                "level_bytes": round(level),
                "change_bytes": round(change),
                "top_bytes": round(top),
                "median_bytes": round(float(np.nanmedian(middle[place]))),
                "since": _since(off[place], by, reason),
                "times": float(furthest[place] / usual[place]),
            }
        )
    return sorted(found, key=lambda each: -abs(each["off_bytes"]))


def _level_and_change(off: Floats) -> tuple[Floats, Floats]:
    """Of each rank the median of its deviations, and that of its last quarter minus that of its first."""
    level, change = np.zeros(len(off)), np.zeros(len(off))
    num_known = (~np.isnan(off)).sum(axis=1)
    for count in np.unique(num_known[num_known > 0]):  # nearly all ranks are known in every interval
        mine = np.flatnonzero(num_known == count)
        known = off[mine][~np.isnan(off[mine])].reshape(len(mine), count)
        quarter = max(1, count // 4)
        level[mine] = np.median(known, axis=1)
        change[mine] = np.median(known[:, -quarter:], axis=1) - np.median(known[:, :quarter], axis=1)
    return level, change


def _tops(matrix: RankMatrix, groups: list[str | None]) -> Floats:
    """Of each rank its highest minus the median of its group's highest."""
    highest = matrix.cells.max(axis=1, keepdims=True)
    tops = RankMatrix(ranks=matrix.ranks, cells=highest, exact=matrix.exact, source=matrix.source)
    against = np.nan_to_num(highest[:, 0] - rank_matrix.medians(tops, groups)[:, 0])
    found: Floats = against * matrix.known.any(axis=1)
    return found


def _usual(furthest: Floats, middle: Floats, groups: list[str | None]) -> Floats:
    """Of each rank how far off is usual in its group, at least a share of what the group holds."""
    names = np.array([str(name) for name in groups])
    found = np.zeros(len(furthest))
    for name in np.unique(names):
        mine = names == name
        some = middle[mine][~np.isnan(middle[mine])]
        least = LEAST_SHARE * abs(float(np.median(some))) if len(some) else 0.0
        found[mine] = max(float(np.median(furthest[mine])), least / USUAL_TIMES, LEAST_BYTES / USUAL_TIMES)
    return found


def _reason(level: float, change: float, top: float) -> tuple[str, float]:
    """What a rank's deviation is called, and its bytes."""
    furthest = max(abs(level), abs(change), abs(top))
    if abs(change) >= TREND_SHARE * furthest:
        return ("growing" if change > 0 else "fell"), change
    by = level if abs(level) >= abs(top) else top
    return ("high" if by > 0 else "low"), by


def _since(off: Floats, by: float, reason: str) -> int:
    """The first interval from which a rank is off by half of it."""
    known = np.flatnonzero(~np.isnan(off))
    if not len(known):
        return 0
    begin = float(np.median(off[known[: max(1, len(known) // 4)]])) if reason in ("growing", "fell") else 0.0
    reached = known[(off[known] - begin) * np.sign(by) >= abs(by) / 2]
    return int(reached[0] if len(reached) else known[0])


ROUTES: Final = (SessionRoute(path="/odd", parameters=OddAsked, answer=odd),)
