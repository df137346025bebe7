"""Which questions a file keeps the answers to: those that the page asks as its views are opened.

Stage: page and export. In: the session's ranks, what the user chose, the routes. Out: paths and parameters. A
route that is not named here is asked with its defaults, for each kept rank where it is about a rank. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.page.parameters import declared
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_protos.errors import Code, RankmemError

RANKS_MAX: Final = 16
"""Ranks whose curves and blocks are kept: some 200 KiB each."""
NEVER: Final = frozenset({"/job"})
"""Kept by themselves."""

ALSO: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {}
"""By route: what the page asks it besides its defaults, each a change of the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is kept: times are ns since the session's start."""

    tracks: tuple[Mapping[str, Any], ...]
    """A row of ``/job`` for each kept device of a rank, the one that is shown first at the beginning."""
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
        types = sorted({row["device_type"] for row in rows}, key=lambda each: (each == "cpu", each))
        return cls(
            tracks=tuple(_tracks(rows, ranks)),
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
    among = [row for row in rows if row["device_type"] != "cpu"] or rows
    if ranks is None:
        yield from sorted(among, key=lambda row: -row["peak_bytes"])[:1]
        return
    for rank in ranks:
        own = [row for row in among if row["rank"] == rank] or [row for row in rows if row["rank"] == rank]
        yield from sorted(own, key=lambda row: -row["peak_bytes"])[:1]


def questions_of(
    chosen: Chosen, routes: Sequence[SessionRoute | DatabaseRoute]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and parameters of each question, by the names of the query string."""
    for route in routes:
        if isinstance(route, DatabaseRoute) or route.path in NEVER:
            continue
        names = {each.name: each.required for each in declared(route.parameters)}
        for track in chosen.tracks if "rank" in names else ({},):
            given = {
                name: value
                for name, value in _known(chosen, track).items()
                if name in names and value is not None
            }
            if any(required and name not in given for name, required in names.items()):
                continue
            for change in ({}, *ALSO.get(route.path, ())):
                yield route.path, {**given, **change}


def _known(chosen: Chosen, track: Mapping[str, Any]) -> dict[str, Any]:
    """What the page fills in for every panel."""
    return {
        "from": chosen.first_ns,
        "to": chosen.last_ns,
        "rank": track.get("rank"),
        "attempt": track.get("attempt"),
        "device": track.get("device"),
        "device_type": chosen.device_types[0] if chosen.device_types else None,
    }
