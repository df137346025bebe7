"""Which questions a file keeps the answers to: those that the page asks as its views are opened.

Stage: page and export. In: the session's ranks, what the user chose, the routes. Out: paths and parameters. A
route that is not named here is asked with its defaults, for each kept rank where it is about a rank. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.page.parameters import declared
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_protos.devices import HOST_MEMORY
from rankmem_protos.errors import Code, RankmemError

RANKS_MAX: Final = 16
"""Ranks whose curves and blocks are kept: some 200 KiB each."""
NEVER: Final = frozenset({"/job", "/jump", "/insight/fragmentation", "/insight/fit", "/insight/diff"})
"""Kept by itself; and what is asked on a key press alone, or about what the file has no other session of."""
RANK: Final = ("rank", "attempt", "device")
RANGE: Final = ("from", "to")
INSTANT: Final = (*RANK, "seq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the page asks a route as a view is opened."""

    names: tuple[str, ...] | None = None
    """Of the parameters that every panel fills in; None: all that the route has, but for ``seq``."""
    changes: tuple[Mapping[str, Any], ...] = ({},)
    """What it asks besides, a question each."""
    follows_range: bool = False
    """It also gives the range, where that is a part of the session's."""


PLANS: Final[Mapping[str, Plan]] = {
    "/groups": Plan(changes=({}, *({"by": by} for by in ("phase", "module", "operator", "line")))),
    "/heat": Plan(changes=({}, {"mode": "median"}, {"mode": "headroom"})),
    "/flame": Plan(
        names=RANK,
        changes=tuple({"min_share": 0.002, "by": by} for by in ("line", "module", "operator")),
    ),
    "/blocks": Plan(names=RANK, changes=({"limit": 50},)),
    "/blocks/total": Plan(names=RANK),
    "/events": Plan(names=INSTANT),
    "/fragmentation": Plan(names=RANK),
    "/map": Plan(names=RANK, changes=({}, {"kind": "address"}), follows_range=True),
    "/segments": Plan(names=RANK),
    "/fit": Plan(names=()),
    "/peak": Plan(names=()),
    "/peak_held": Plan(
        names=(),
        changes=(
            {"by": "category", "groups": 11, "of": "rank"},
            *({"by": by, "of": "job"} for by in ("category", "line", "module", "operator")),
        ),
    ),
    "/step_heat": Plan(names=(), changes=({"figure": "growth"},)),
    "/insight/whatif": Plan(names=RANK),
    "/step_kept": Plan(names=(), changes=({"by": "line", "keep": 4},)),
    "/steps": Plan(names=(), changes=({"limit": 500},)),
    "/modules": Plan(names=()),
    "/mindstudio/curve": Plan(names=("rank",), changes=({"points": 4000},)),
    "/mindstudio/operators": Plan(names=("rank",)),
    "/diff": Plan(names=("a", "b", "device_type"), changes=({}, {"by": "line"}, {"by": "operator"})),
    "/oom_held": Plan(names=INSTANT),
    "/oom_ranks": Plan(names=INSTANT),
    "/oom_events": Plan(names=INSTANT),
}
"""By route. A test opens a file and fails where a view asks what is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is kept: times are ns since the session's start."""

    tracks: tuple[Mapping[str, Any], ...]
    """A row of ``/job`` for each kept device of a rank, the one that is shown first at the beginning."""
    rows: tuple[Mapping[str, Any], ...]
    """The rows of ``/job`` with a device."""
    device_types: tuple[str, ...]
    first_ns: int
    last_ns: int
    is_range: bool
    """Whether the range is a part of the session's."""
    is_ranks: bool
    """Whether the user chose ranks."""

    @classmethod
    def of(
        cls,
        job: pa.Table,
        *,
        ranks: Sequence[int] | None,
        first_ns: int,
        last_ns: int,
        from_ns: int | None,
        until_ns: int | None,
    ) -> Chosen:
        """What is kept of a session.

        Raises:
            RankmemError: INVALID for too many ranks, or a range outside of the session.
        """
        if ranks is not None and len(ranks) > RANKS_MAX:
            raise RankmemError(
                Code.INVALID,
                f"{len(ranks)} ranks are more than the {RANKS_MAX} that a file holds",
                "choose fewer with --rank; the heat map and the peaks are of all ranks anyway",
            )
        begin = first_ns if from_ns is None else max(first_ns, from_ns)
        end = last_ns if until_ns is None else min(last_ns, until_ns)
        if end <= begin:
            raise RankmemError(
                Code.NOT_FOUND, "the session has no events in this range", "rankmem sessions says when it ran"
            )
        rows = [row for row in job.to_pylist() if row["device"] is not None]
        types = sorted({row["device_type"] for row in rows}, key=lambda each: (each in HOST_MEMORY, each))
        return cls(
            tracks=tuple(_tracks(rows, ranks)),
            rows=tuple(rows),
            device_types=tuple(types),
            first_ns=begin,
            last_ns=end,
            is_range=(begin, end) != (first_ns, last_ns),
            is_ranks=ranks is not None,
        )

    def state(self, session_id: str) -> dict[str, str]:
        """The page's state at the beginning."""
        found = {"s": session_id}
        if self.is_range:
            found |= {"from": str(self.first_ns), "to": str(self.last_ns)}
        if self.is_ranks and self.tracks:
            found["rank"] = str(self.tracks[0]["rank"])
        return found

    def text(self) -> str:
        """What the file holds, in words."""
        ranks = (
            ", ".join(str(rank) for rank in dict.fromkeys(track["rank"] for track in self.tracks)) or "none"
        )
        whole = "a part of the session" if self.is_range else "the whole session"
        return f"the job's peaks and heat map, and rank {ranks} over {whole}"


def _tracks(rows: list[dict[str, Any]], ranks: Sequence[int] | None) -> Iterator[dict[str, Any]]:
    """As the page chooses: of each rank the device that stood highest, an accelerator if there is one."""
    among = [row for row in rows if row["device_type"] not in HOST_MEMORY] or rows
    if ranks is None:
        yield from sorted(among, key=lambda row: -row["peak_bytes"])[:1]
        return
    for rank in ranks:
        own = [row for row in among if row["rank"] == rank] or [row for row in rows if row["rank"] == rank]
        yield from sorted(own, key=lambda row: -row["peak_bytes"])[:1]


def questions_of(
    chosen: Chosen, routes: Sequence[SessionRoute | DatabaseRoute], oom: Mapping[str, Any] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and parameters of each question, by the names of the query string.

    Args:
        oom: the failed allocation that the page shows first; None: there is none.
    """
    for route in routes:
        if isinstance(route, DatabaseRoute) or route.path in NEVER:
            continue
        plan = PLANS.get(route.path, Plan())
        names = {each.name: each.required for each in declared(route.parameters)}
        of_ooms: tuple[Mapping[str, Any], ...] = () if oom is None else (oom,)
        tracks = (
            of_ooms
            if route.path.startswith("/oom_")
            else chosen.tracks
            if {"rank", "a"} & set(names)
            else ({},)
        )
        for track, change in product(tracks, plan.changes):
            known = _known(chosen, track)
            wanted = [name for name in known if name != "seq"] if plan.names is None else [*plan.names]
            wanted += RANGE if plan.follows_range and chosen.is_range else ()
            given = {name: known[name] for name in wanted if name in names and known[name] is not None}
            if all(not required or name in given or name in change for name, required in names.items()):
                yield route.path, {**given, **change}


def _known(chosen: Chosen, track: Mapping[str, Any]) -> dict[str, Any]:
    """What the page fills in for every panel."""
    return {
        "from": chosen.first_ns,
        "to": chosen.last_ns,
        "rank": track.get("rank"),
        "attempt": track.get("attempt"),
        "device": track.get("device"),
        "seq": track.get("peak_seq", track.get("seq")),
        "device_type": chosen.device_types[0] if chosen.device_types else None,
        **_sides(chosen, track),
    }


def _sides(chosen: Chosen, track: Mapping[str, Any]) -> dict[str, str]:
    """What the page compares at first: the rank against the highest other one; see ``static/sides.js``."""
    if "device_type" not in track:
        return {}
    others = [
        row
        for row in chosen.rows
        if row["rank"] != track["rank"] and row["device_type"] == track["device_type"]
    ]
    other = max(others, key=lambda row: row["peak_bytes"], default=track)
    return {"a": f"/{other['rank']}/peak", "b": f"/{track['rank']}/peak"}
