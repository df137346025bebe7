"""Memory over time: which curves are meant, which query gives their points, and their thinning.

Stage: query, in the reader's process. In: a way to ask named queries, and what the user chose. Out: points
(time_ns, group, bytes) with what was chosen in the schema's metadata. A curve is of one device of one rank,
or of ranks together. Long recordings are read from memory_bucket, whose seconds keep their highest values;
everything else is read to the event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.query import thinning as curves
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.query.types import Value

EVENTS_MAX: Final = 3_000_000
"""Above so many events in the range a rank's totals are read by seconds: 3 M points take about a second."""
EVENTS_BY_GROUP_MAX: Final = 300_000
"""The same for groups of blocks, of those that the summaries have: 0.3 M events take a third of a second."""
EVENTS_TOGETHER_MAX: Final = 1_000_000
"""The same for sums over ranks, which are sorted: 1.2 M events of 64 ranks take 2 s of CPU."""
BLOCKS_TOGETHER_MAX: Final = 4_000_000
"""Above so many events of several ranks, groups of their blocks that the summaries lack are refused: each
block is read and sorted, which takes 3.4 s of CPU and 1.2 GiB then."""
OF_RANKS: Final = frozenset({"job", "rank", "host", "device", "dp", "tp", "pp", "cp", "ep"})
"""Groupings whose curves are sums over ranks."""
OF_SUMMARIES: Final = frozenset({"stream", "component", "phase", "category"})
"""Groupings whose courses the aggregator keeps."""
OF_ALLOCATOR: Final = frozenset({"stream", "component"})
"""Groupings of which segments are known, too, and so every figure."""
FIGURES: Final = ("requested", "allocated", "active", "reserved")

_OF_CLOCKS: Final = " with times"
"""What sums over ranks are of: recordings without times have no common clock."""

Ask = Callable[..., pa.Table]
Found = tuple[list[pa.Table], bool]
"""Curves, and whether no point was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the user wants to see of a session; None: not said."""

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

    def check(self) -> None:
        """Refuses what has no answer.

        Raises:
            RankmemError: INVALID.
        """
        if self.from_ns is not None and self.until_ns is not None and self.from_ns > self.until_ns:
            raise RankmemError(
                Code.INVALID,
                f"the range ends {(self.from_ns - self.until_ns) / 1e9:g} s before it begins",
                "swap the two",
            )
        of_ranks = self.by in OF_RANKS or self.together
        every_figure = self.by in OF_RANKS or (
            not self.together and (self.by in OF_ALLOCATOR or self.by == "overall")
        )
        if self.figure not in (None, "requested") and not every_figure:
            raise RankmemError(
                Code.INVALID,
                f"of blocks by {self.by} only the requested bytes are known here, not {self.figure}",
                "of ranks by job, rank or host, and of one rank by overall, stream or component they are",
            )
        if of_ranks and self.figure == "all":
            raise RankmemError(
                Code.INVALID, f"one figure at a time by {self.by}", f"one of {', '.join(FIGURES)}"
            )
        if of_ranks and self.attempt is not None:
            raise RankmemError(
                Code.INVALID,
                f"attempt {self.attempt} does not go with {self.by}: sums over ranks are of all attempts",
                "leave it out, or ask for one rank",
            )
        if self.by == "overall" and self.together:
            raise RankmemError(Code.INVALID, "overall is of one rank, not of several", "by rank or job")

    def said(self) -> str:
        """What was chosen, in words."""
        named = {"rank": self.ranks and ", ".join(map(str, self.ranks)), "attempt": self.attempt}
        words = [f"{name} {value}" for name, value in named.items() if value is not None]
        return ", ".join([*words, *([f"device {self.device}"] if self.device else [])])


class Timeline:
    """Answers one question about time.

    Args:
        ask: asks a named query with parameters.
        points: of a curve, at most.
    """

    def __init__(self, ask: Ask, points: int) -> None:
        if points < curves.POINTS_MIN:
            raise RankmemError(
                Code.INVALID, f"{points} points show no shape", f"ask for {curves.POINTS_MIN} or more"
            )
        self._ask = ask
        self._points = points

    def rows(self, session: str, chosen: Chosen) -> pa.Table:
        """The curves of what was chosen."""
        chosen.check()
        together = chosen.together or chosen.by in OF_RANKS
        return self._of_ranks(session, chosen) if together else self._of_rank(session, chosen)

    def _of_ranks(self, session: str, chosen: Chosen) -> pa.Table:
        place: dict[str, Value] = {
            "session": session,
            "ranks": None if chosen.ranks is None else ",".join(map(str, chosen.ranks)),
            "device_type": chosen.device and chosen.device.split(":")[0],
            "from_ns": chosen.from_ns,
            "until_ns": chosen.until_ns,
        }
        track = _first(self._ask("curve_ranks_track", **place), session, chosen, _OF_CLOCKS)
        if missing := sorted(set(chosen.ranks or ()) - set(track["ranks"])):
            raise RankmemError(
                Code.NOT_FOUND,
                f"no events{_OF_CLOCKS} of rank {', '.join(map(str, missing))}",
                "rankmem ranks",
            )
        by_second = _is_by_second(chosen.by, track)
        place |= {"device_type": track["device_type"], "by": chosen.by}
        figure = chosen.figure or "requested"
        if chosen.by in OF_RANKS:
            course = self._ask("curve_by_ranks", **place, by_second=by_second, figure=figure)
        else:
            course = self._ask("job_curve_by_group", **place, by_second=by_second)
        found, exact = curves.of_groups(course, points=self._points)
        facts = {name: track[name] for name in ("num_ranks", "num_hosts", "first_ns", "last_ns")}
        facts |= {"device": track["device_type"], "figure": figure, "stacked": True}
        return curves.joined(found, {**facts, "exact": exact and not by_second})

    def _of_rank(self, session: str, chosen: Chosen) -> pa.Table:
        part: dict[str, Value] = {"from_ns": chosen.from_ns, "until_ns": chosen.until_ns}
        rank = chosen.ranks[0] if chosen.ranks else None
        asked = self._ask(
            "curve_track", session=session, rank=rank, attempt=chosen.attempt, device=chosen.device, **part
        )
        track = _first(asked, session, chosen)
        place = {"session": session, **{name: track[name] for name in ("attempt", "rank", "device")}, **part}
        if chosen.by == "overall":
            found, exact = self._overall(place, track["events"], chosen.figure)
        elif chosen.figure in (None, "requested"):
            found, exact = self._groups(place, chosen.by, track["first_ns"], track["events"])
        else:
            found, exact = self._of_allocator(place, chosen.by, track["first_ns"], chosen.figure)
        names = ("attempt", "rank", "device", "host_name", "first_ns", "last_ns")
        facts = {name: track[name] for name in names}
        facts["figure"] = chosen.figure or ("all" if chosen.by == "overall" else "requested")
        facts["stacked"] = chosen.by != "overall" and chosen.figure != "all"
        return curves.joined(found, {**facts, "exact": exact})

    def _overall(self, place: dict[str, Value], events: int, figure: str | None) -> Found:
        coarse = events > EVENTS_MAX
        totals = self._ask("curve_overall_coarse" if coarse else "curve_overall", **place)
        if figure not in (None, "all"):
            # On cpu there is one figure: the allocator has no counters of its own.
            own = "requested" if place["device"] == "cpu" else figure
            totals = totals.select(["time_ns", own]).rename_columns(["time_ns", figure])
        found, exact = curves.of_columns(totals, points=self._points)
        if figure not in (None, "all"):
            return found, exact and not coarse
        outside, outside_exact = self._process(place, "app_reserved")
        return [*found, *outside], exact and outside_exact and not coarse

    def _groups(self, place: dict[str, Value], by: str, first_ns: int, events: int) -> Found:
        coarse = by in OF_SUMMARIES and events > EVENTS_BY_GROUP_MAX
        blocks = self._ask("curve_by_group", **place, by=by, first_ns=first_ns, coarse=coarse)
        found, exact = curves.of_groups(blocks, points=self._points)
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
            part_found, part_exact = curves.of_columns(part, points=self._points)
            found += part_found
            exact &= part_exact
        if by == "component" and figure in ("all", "reserved"):
            # Beside each other the process as a whole; in a stack what of it lies beyond the allocators.
            outside, outside_exact = self._process(place, "app_reserved" if figure == "all" else "app")
            found += outside
            exact &= outside_exact
        return found, exact

    def _process(self, place: dict[str, Value], column: str) -> Found:
        process = self._ask("curve_app", **place).select(["time_ns", column])
        return curves.of_columns(process, points=self._points)


def _is_by_second(by: str, track: dict[str, Any]) -> bool:
    """Whether curves of ranks together are read by the second; groups of blocks need all events of the ranks.

    Raises:
        RankmemError: EXHAUSTED for groups without summaries over more events than can be read.
    """
    if by in OF_RANKS:
        return int(track["events"]) > EVENTS_TOGETHER_MAX
    if by in OF_SUMMARIES:
        return int(track["all_events"]) > EVENTS_TOGETHER_MAX
    if track["all_events"] > BLOCKS_TOGETHER_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"{track['all_events']:,} events of {track['num_ranks']} ranks are too many to tell by {by}: "
            f"{BLOCKS_TOGETHER_MAX:,} are read at most",
            "fewer ranks, or by category, phase, stream or component",
        )
    return False


def chosen_ranks(rank: int | Sequence[int] | str | None) -> tuple[int, ...] | None:
    """One rank or several as what they are here; None for the word ``all``, and for none."""
    if rank is None or isinstance(rank, str):
        return None
    return (rank,) if isinstance(rank, int) else tuple(rank)


def _first(track: pa.Table, session: str, chosen: Chosen, which: str = "") -> dict[str, Any]:
    rows = track.to_pylist()
    if not rows:
        said = f" of {chosen.said()}" if chosen.said() else ""
        raise RankmemError(Code.NOT_FOUND, f"no events{which} in session {session}{said}", "rankmem ranks")
    return dict(rows[0])
