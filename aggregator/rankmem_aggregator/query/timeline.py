"""Memory over time: which curves a request selects, which query has their points, and their thinning.

Stage: query, in the reader's process. In: a way to ask named queries, and a request. Out: points
(time_ns, group, bytes) and the facts that all of them share. A curve is of one device of one rank,
or of ranks together. Long recordings are read from memory_bucket, whose seconds keep their highest values;
everything else is read to the event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.query import thinning
from rankmem_aggregator.query.timeline_facts import Timeline, TimelineFacts
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import GROUPINGS, Grouping, grouping_of

if TYPE_CHECKING:
    from rankmem_aggregator.query.types import Value

EVENTS_MAX: Final = 3_000_000
"""Above so many events in the range a rank's totals are read by seconds: 3 M points take about a second."""
EVENTS_BY_GROUP_MAX: Final = 300_000
"""The same for groups of blocks, of those that the summaries have: 0.3 M events take a third of a second."""
EVENTS_TOGETHER_MAX: Final = 1_000_000
"""The same for sums over ranks, which are sorted: 1.2 M events of 64 ranks take 2 s of CPU."""
BLOCKS_TOGETHER_MAX: Final = 4_000_000
"""Above so many events of several ranks, groups of their blocks without summaries are refused: each
block is read and sorted, which takes 3.4 s of CPU and 1.2 GiB then."""
FIGURES: Final = ("requested", "allocated", "active", "reserved")

_WITH_TIMES: Final = " with times"
"""The events in sums over ranks: recordings without times have no common clock."""

Ask = Callable[..., pa.Table]
Found = tuple[list[pa.Table], bool]
"""Curves, and whether no point was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRequest:
    """What the user asks for; None: not given."""

    by: str
    figure: str | None
    ranks: tuple[int, ...] | None
    """None: all where ranks are added up, else the highest."""
    together: bool
    """Several ranks, or all, are added up."""
    attempt: int | None
    device: str | None
    from_ns: int | None
    until_ns: int | None

    def grouping(self) -> Grouping:
        """The grouping of its curves.

        Raises:
            RankmemError: INVALID for an unknown grouping.
        """
        return grouping_of(self.by, "timeline")

    def check(self) -> None:
        """Refuses a request that has no answer.

        Raises:
            RankmemError: INVALID.
        """
        if self.from_ns is not None and self.until_ns is not None and self.from_ns > self.until_ns:
            raise RankmemError(
                Code.INVALID,
                f"the range ends {(self.from_ns - self.until_ns) / 1e9:g} s before it begins",
                "swap the two",
            )
        grouping = self.grouping()
        sums_ranks = grouping.of == "ranks" or self.together
        every_figure = grouping.of == "ranks" or (
            not self.together and (grouping.of_allocator or grouping.of == "total")
        )
        if self.figure not in (None, "requested") and not every_figure:
            raise RankmemError(
                Code.INVALID,
                f"by {self.by} only the requested bytes are known here, not {self.figure}",
                "they are known by job, rank or host, and for one rank by overall, stream or component",
            )
        if sums_ranks and self.figure == "all":
            raise RankmemError(
                Code.INVALID, f"one figure at a time by {self.by}", f"one of {', '.join(FIGURES)}"
            )
        if sums_ranks and self.attempt is not None:
            raise RankmemError(
                Code.INVALID,
                f"attempt {self.attempt} does not go with {self.by}: sums over ranks cover all attempts",
                "leave it out, or ask for one rank",
            )
        if self.by == "overall" and self.together:
            raise RankmemError(Code.INVALID, "overall applies to one rank, not to several", "by rank or job")

    def in_words(self) -> str:
        """The rank, attempt and device that were given."""
        named = {"rank": self.ranks and ", ".join(map(str, self.ranks)), "attempt": self.attempt}
        words = [f"{name} {value}" for name, value in named.items() if value is not None]
        return ", ".join([*words, *([f"device {self.device}"] if self.device else [])])


class TimelineReader:
    """Reads the curves of a request.

    Args:
        ask: runs a named query with parameters.
        points: of a curve, at most.
    """

    def __init__(self, ask: Ask, points: int) -> None:
        if points < thinning.POINTS_MIN:
            raise RankmemError(
                Code.INVALID,
                f"{points} points are too few to show a shape",
                f"ask for {thinning.POINTS_MIN} or more",
            )
        self._ask = ask
        self._points = points

    def read(self, session: str, request: TimelineRequest) -> Timeline:
        """The curves that the request asks for."""
        request.check()
        together = request.together or request.grouping().of == "ranks"
        return self._of_ranks(session, request) if together else self._of_rank(session, request)

    def _of_ranks(self, session: str, request: TimelineRequest) -> Timeline:
        place: dict[str, Value] = {
            "session": session,
            "ranks": None if request.ranks is None else ",".join(map(str, request.ranks)),
            "device_type": request.device and request.device.split(":")[0],
            "from_ns": request.from_ns,
            "until_ns": request.until_ns,
        }
        track = _first(self._ask("curve_ranks_track", **place), session, request, _WITH_TIMES)
        if missing := sorted(set(request.ranks or ()) - set(track["ranks"])):
            raise RankmemError(
                Code.NOT_FOUND,
                f"no events{_WITH_TIMES} of rank {', '.join(map(str, missing))}",
                "rankmem ranks",
            )
        by_second = _is_by_second(request.by, track)
        place |= {"device_type": track["device_type"], "by": request.by}
        figure = request.figure or "requested"
        if request.grouping().of == "ranks":
            course = self._ask("curve_by_ranks", **place, by_second=by_second, figure=figure)
        else:
            course = self._ask("job_curve_by_group", **place, by_second=by_second)
        found, exact = thinning.of_groups(course, points=self._points)
        facts = TimelineFacts(
            **{name: track[name] for name in ("num_ranks", "num_hosts", "first_ns", "last_ns")},
            device=track["device_type"],
            figure=figure,
            stacked=True,
            exact=exact and not by_second,
            by_second=by_second,
        )
        return Timeline(rows=thinning.joined(found), facts=facts)

    def _of_rank(self, session: str, request: TimelineRequest) -> Timeline:
        part: dict[str, Value] = {"from_ns": request.from_ns, "until_ns": request.until_ns}
        rank = request.ranks[0] if request.ranks else None
        tracks = self._ask(
            "curve_track", session=session, rank=rank, attempt=request.attempt, device=request.device, **part
        )
        track = _first(tracks, session, request)
        place = {"session": session, **{name: track[name] for name in ("attempt", "rank", "device")}, **part}
        if request.by == "overall":
            found, exact = self._overall(place, track["events"], request.figure)
        elif request.figure in (None, "requested"):
            found, exact = self._groups(place, request.by, track["first_ns"], track["events"])
        else:
            found, exact = self._of_allocator(place, request.by, track["first_ns"], request.figure)
        names = ("attempt", "rank", "device", "host_name", "first_ns", "last_ns")
        facts = TimelineFacts(
            **{name: track[name] for name in names},
            figure=request.figure or ("all" if request.by == "overall" else "requested"),
            stacked=request.by != "overall" and request.figure != "all",
            exact=exact,
        )
        return Timeline(rows=thinning.joined(found), facts=facts)

    def _overall(self, place: dict[str, Value], events: int, figure: str | None) -> Found:
        coarse = events > EVENTS_MAX
        totals = self._ask("curve_overall_coarse" if coarse else "curve_overall", **place)
        if figure not in (None, "all"):
            # On cpu there is one figure: the allocator has no counters of its own.
            own = "requested" if place["device"] == "cpu" else figure
            totals = totals.select(["time_ns", own]).rename_columns(["time_ns", figure])
        found, exact = thinning.of_columns(totals, points=self._points)
        if figure not in (None, "all"):
            return found, exact and not coarse
        outside, outside_exact = self._process(place, "app_reserved")
        return [*found, *outside], exact and outside_exact and not coarse

    def _groups(self, place: dict[str, Value], by: str, first_ns: int, events: int) -> Found:
        coarse = GROUPINGS[by].has_summary and events > EVENTS_BY_GROUP_MAX
        blocks = self._ask("curve_by_group", **place, by=by, first_ns=first_ns, coarse=coarse)
        found, exact = thinning.of_groups(blocks, points=self._points)
        exact &= not coarse
        if by != "component":
            return found, exact
        outside, outside_exact = self._process(place, "app")
        return [*found, *outside], exact and outside_exact

    def _of_allocator(self, place: dict[str, Value], by: str, first_ns: int, figure: str) -> Found:
        """One figure of each stream or component; for ``all`` every one, as MindStudio's views have them."""
        course = self._ask("curve_by_allocator", **place, by=by, first_ns=first_ns)
        wanted = ("allocated", "active", "reserved") if figure == "all" else (figure,)
        found: list[pa.Table] = []
        exact = True
        for group in course["group_name"].unique().to_pylist():
            of_group = course.filter(pc.equal(course["group_name"], group))
            named = {name: f"{group} {name}" if figure == "all" else group for name in wanted}
            part = of_group.select(["time_ns", *wanted]).rename_columns(["time_ns", *named.values()])
            part_found, part_exact = thinning.of_columns(part, points=self._points)
            found += part_found
            exact &= part_exact
        if by == "component" and figure in ("all", "reserved"):
            # Separate curves: the whole process; a stack: only its bytes beyond the allocators.
            outside, outside_exact = self._process(place, "app_reserved" if figure == "all" else "app")
            found += outside
            exact &= outside_exact
        return found, exact

    def _process(self, place: dict[str, Value], column: str) -> Found:
        process = self._ask("curve_app", **place).select(["time_ns", column])
        return thinning.of_columns(process, points=self._points)


def _is_by_second(by: str, track: dict[str, Any]) -> bool:
    """Whether curves of ranks together are read by the second; groups of blocks need all events of the ranks.

    Raises:
        RankmemError: EXHAUSTED for groups without summaries over more events than can be read.
    """
    if GROUPINGS[by].of == "ranks":
        return int(track["events"]) > EVENTS_TOGETHER_MAX
    if GROUPINGS[by].has_summary:
        return int(track["all_events"]) > EVENTS_TOGETHER_MAX
    if track["all_events"] > BLOCKS_TOGETHER_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"{track['all_events']:,} events of {track['num_ranks']} ranks are too many to group by {by}: "
            f"{BLOCKS_TOGETHER_MAX:,} are read at most",
            "fewer ranks, or by category, phase, stream or component",
        )
    return False


def chosen_ranks(rank: int | Sequence[int] | str | None) -> tuple[int, ...] | None:
    """One rank or several as a tuple; None for the word ``all``, and for none."""
    if rank is None or isinstance(rank, str):
        return None
    return (rank,) if isinstance(rank, int) else tuple(rank)


def _first(track: pa.Table, session: str, request: TimelineRequest, which: str = "") -> dict[str, Any]:
    rows = track.to_pylist()
    if not rows:
        words = f" of {request.in_words()}" if request.in_words() else ""
        raise RankmemError(Code.NOT_FOUND, f"no events{which} in session {session}{words}", "rankmem ranks")
    return dict(rows[0])
