"""The highest sum over ranks by slices of time: bounds, slices, the best of them.

Stage: query, in the reader's process. In: a session of a lake and an engine; out: the rows of the macro
``group_peak``, which each slice is asked unchanged. The lake knows what each device held where a segment
begins, and the highest in it (its table ``opening``): added up these bound what a slice can reach, so that
slices below the best that was found are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.lake.parts import FOREVER_NS, SlicePart, Track
from rankmem_aggregator.query.types import Parameters

GROUP_PEAK: Final = "SELECT * FROM group_peak($session, $by)"
Row = dict[str, Any]
Ask = Callable[[str, Parameters], pa.Table]
"""A statement and its parameters to the lake, in one process."""
_Group = tuple[str, str | None]
"""device_type, group_key."""

_SPANS: Final = """
SELECT attempt, rank, offset_ns, ended_ns, coalesce(has_clock, true) AS has_clock FROM rank_span
WHERE session_id = $session
ORDER BY attempt, rank
"""
_GROUPS: Final = """
SELECT attempt, rank, device, group_key FROM rank_group($session, $by)
ORDER BY attempt, rank, device
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """A session's slices."""

    parts: tuple[SlicePart, ...]
    bounds: tuple[dict[_Group, int], ...]
    """Of each part what its groups of ranks do not exceed, bytes."""


@dataclass(kw_only=True)
class Best:
    """The highest sums that were found, and the slices that are still worth a look."""

    slices: Slices
    rows: dict[_Group, list[Row]] = field(default_factory=dict)
    _reached: dict[_Group, tuple[int, int, int]] = field(default_factory=dict)
    """Bytes, minus the instant, minus the slice: the first of equals is the answer."""

    def worth_asking(self) -> Iterator[SlicePart]:
        """The slices that may hold a peak, the likeliest first; what was found meanwhile counts."""
        bounds = self.slices.bounds
        for number in sorted(range(len(bounds)), key=lambda n: (-max(bounds[n].values(), default=0), n)):
            if any(
                bytes_ >= self._reached.get(group, (0, 0, 0))[0] for group, bytes_ in bounds[number].items()
            ):
                yield self.slices.parts[number]

    def take(self, number: int, answer: pa.Table) -> None:
        """Compares the answer of a slice with the best so far."""
        found: dict[_Group, list[Row]] = {}
        for row in answer.to_pylist():
            found.setdefault((row["device_type"], row["group_key"]), []).append(row)
        for group, rows in found.items():
            reached = rows[0]["group_peak_bytes"], -rows[0]["group_peak_ns"], -number
            if group not in self._reached or reached > self._reached[group]:
                self._reached[group], self.rows[group] = reached, rows


def slices_of(ask: Ask, openings: str, session: str, by: str, most: int) -> Slices | None:
    """How a session is cut; None where one process has to answer.

    Args:
        ask: asks the lake.
        openings: the statement that reads its table ``opening``.
        session: its full id.
        by: the groups of ranks, as for ``group_peak``.
        most: slices, at most.
    """
    spans = ask(_SPANS, {"session": session}).to_pylist()
    rows = ask(
        f"FROM ({openings}) WHERE session_id = $session ORDER BY of_segment, attempt, rank, device",
        {"session": session},
    ).to_pylist()
    last = max((row["of_segment"] for row in rows), default=0)
    # Ranks without a clock are in a sum only where they are alone: in a slice another one might be missing.
    if last < 1 or not all(span["has_clock"] for span in spans) or is_shifted(spans, rows):
        return None
    groups = {} if by == "job" else {
        _track(row): row["group_key"] for row in ask(_GROUPS, {"session": session, "by": by}).to_pylist()
    }  # fmt: skip
    width = -(-(last + 1) // most)
    return cut(session, spans, rows, groups, list(range(0, last + 1, width)))


def is_shifted(spans: Iterable[Row], openings: Iterable[Row]) -> bool:
    """Whether a clock has another offset than when the session was cut: its slices begin elsewhere by now.

    Args:
        spans: attempt, rank, offset_ns of each rank, as they are now.
        openings: the rows of ``opening``.
    """
    now = {(span["attempt"], span["rank"]): span["offset_ns"] for span in spans}
    return any(row["offset_ns"] != now.get((row["attempt"], row["rank"]), 0) for row in openings)


def cut(
    session: str,
    spans: Sequence[Row],
    openings: Sequence[Row],
    groups: dict[Any, str | None],
    firsts: list[int],
) -> Slices:
    """The slices that begin at these segments.

    Args:
        session: its full id.
        spans: attempt, rank, offset_ns, ended_ns of each rank.
        openings: the rows of ``opening``, ordered by segment.
        groups: the group of each device of a rank; of others NULL.
        firsts: ordered; the first is 0.
    """
    edges = {row["of_segment"]: row["from_ns"] for row in openings}
    last = max(edges)
    ended = {(span["attempt"], span["rank"]): span["ended_ns"] for span in spans}
    last_active: dict[Any, int] = {}
    by_segment: dict[int, list[Row]] = {}
    for row in openings:
        by_segment.setdefault(row["of_segment"], []).append(row)
        if row["highest_bytes"] is not None:
            last_active[_track(row)] = row["of_segment"]

    def living(segment: int) -> tuple[Track, ...]:
        """What devices hold where a segment begins: not those of ranks that were over."""
        at_ns = edges[segment]
        return tuple(
            Track(
                attempt=row["attempt"],
                rank=row["rank"],
                device=row["device"],
                requested_bytes=row["opening_bytes"],
                seq=row["opening_seq"],
            )
            for row in by_segment[segment]
            if row["opening_bytes"] is not None
            and (
                (over := ended.get((row["attempt"], row["rank"]))) is None
                or over >= at_ns
                or last_active.get(_track(row), -1) >= segment
            )
        )

    offsets = tuple((s["attempt"], s["rank"], s["offset_ns"]) for s in spans if s["offset_ns"])
    parts, bounds = [], []
    for number, first in enumerate(firsts):
        until = firsts[number + 1] if number + 1 < len(firsts) else last + 1
        parts.append(
            SlicePart(
                session_id=session,
                number=number,
                from_ns=edges[first] if first else -FOREVER_NS,
                until_ns=edges[until] if until <= last else FOREVER_NS,
                segments=(first, until - 1),
                offsets=offsets,
                openings=living(first) if first else (),
                held=living(until) if until <= last else (),
            )
        )
        bounds.append(
            _bounds([row for segment in range(first, until) for row in by_segment[segment]], groups)
        )
    return Slices(parts=tuple(parts), bounds=tuple(bounds))


def _bounds(rows: Sequence[Row], groups: dict[Any, str | None]) -> dict[_Group, int]:
    """By group the sum of the most that each of its devices held."""
    highest: dict[Any, int] = {}
    for row in rows:
        bytes_ = max(row["opening_bytes"] or 0, row["highest_bytes"] or 0)
        highest[_track(row)] = max(bytes_, highest.get(_track(row), 0))
    found: dict[_Group, int] = {}
    for track, bytes_ in highest.items():
        group = track[2].partition(":")[0], groups.get(track)
        found[group] = found.get(group, 0) + bytes_
    return found


def _track(row: Row) -> tuple[int, int, str]:
    return row["attempt"], row["rank"], row["device"]
