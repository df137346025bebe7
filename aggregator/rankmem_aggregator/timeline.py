"""A rank's memory over time: which curve is meant, which query gives its points, and their thinning.

Stage: query, in the reader's process. In: a way to ask named queries, and what the user chose. Out: points
(time_ns, group, bytes) with what was chosen in the schema's metadata. Long recordings are read from
memory_bucket, whose seconds keep their highest values; everything else is read to the event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rankmem_aggregator import curves
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.queries import Value

EVENTS_MAX: Final = 3_000_000
"""Above so many events in the range the overall curve is read by seconds: 3 M points take about a second."""

Ask = Callable[..., pa.Table]


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

    def rows(self, session: str, *, by: str, **chosen: Value) -> pa.Table:
        """The curves; ``chosen``: rank, attempt, device, from_ns, until_ns, each may be None."""
        track = self._track(session, chosen)
        place: dict[str, Value] = {
            "session": session,
            **{name: track[name] for name in ("attempt", "rank", "device")},
            **{name: chosen[name] for name in ("from_ns", "until_ns")},
        }
        if by == "overall":
            found, exact = self._overall(place, track["events"])
        else:
            found, exact = self._groups(place, by, track["first_ns"])
        facts = {
            name: track[name] for name in ("attempt", "rank", "device", "host_name", "first_ns", "last_ns")
        }
        return curves.joined(found, {**facts, "exact": exact})

    def _track(self, session: str, chosen: dict[str, Value]) -> dict[str, Any]:
        rows = self._ask("curve_track", session=session, **chosen).to_pylist()
        if not rows:
            said = ", ".join(f"{k} {v}" for k, v in chosen.items() if v is not None and not k.endswith("_ns"))
            raise RankmemError(
                Code.NOT_FOUND,
                f"no events in session {session}" + (f" of {said}" if said else ""),
                "rankmem ranks",
            )
        return dict(rows[0])

    def _overall(self, place: dict[str, Value], events: int) -> tuple[list[pa.Table], bool]:
        coarse = events > EVENTS_MAX
        totals = self._ask("curve_overall_coarse" if coarse else "curve_overall", **place)
        found, exact = curves.of_columns(totals, points=self._points)
        process = self._ask("curve_app", **place).select(["time_ns", "app_reserved"])
        outside, outside_exact = curves.of_columns(process, points=self._points)
        return [*found, *outside], exact and outside_exact and not coarse

    def _groups(self, place: dict[str, Value], by: str, first_ns: int) -> tuple[list[pa.Table], bool]:
        blocks = self._ask("curve_by_group", **place, by=by, first_ns=first_ns)
        found, exact = curves.of_groups(blocks, points=self._points)
        if by != "component":
            return found, exact
        process = self._ask("curve_app", **place).select(["time_ns", "app"])
        outside, outside_exact = curves.of_columns(process, points=self._points)
        return [*found, *outside], exact and outside_exact
