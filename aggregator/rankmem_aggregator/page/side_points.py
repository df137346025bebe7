"""Which devices a side of a comparison has, and after which event of its own each is looked at.

Stage: page, in the thread of a request. In: a side, and the rows that many answers begin with; what these
do not tell is asked. Out: the devices by rank, as statements take them in their parameter ``points``.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.job_shares import job_shares
from rankmem_aggregator.page.reading import PageSession, Reading
from rankmem_aggregator.page.shared_rows import SharedRows
from rankmem_aggregator.page.sides import Side
from rankmem_aggregator.query.types import Value
from rankmem_protos.errors import Code, RankmemError

MOMENTS_KEPT: Final = 32
"""Moments whose events stay in memory, at 100 bytes a rank."""
Key = tuple[int, int, str]
"""Attempt, rank and device."""

_events = SharedRows(MOMENTS_KEPT)


def session_of(reading: Reading, of: Side) -> PageSession:
    """The session of a side."""
    return reading.other(of.session) if of.session else reading.session


def points_of(reading: Reading, of: Side, device_type: str) -> list[dict[str, Any]]:
    """The devices of a side, by rank, and the event after which each is looked at; none for a range.

    The events are found once for all diagrams of a comparison, while the session stays as it is.

    Each row has attempt, rank, device, offset_ns and seq.
    """
    own = _own(reading, of)
    rows = devices_of(own, of.kind, of.value, device_type)
    if of.is_range:
        return [{**row, "seq": None} for row in rows]
    seqs = _seqs(own, of)
    found = ((row, (row["attempt"], row["rank"], row["device"])) for row in rows)
    return [{**row, "seq": seqs[key]} for row, key in found if key in seqs]


def devices_of(
    reading: Reading, kind: str, value: str, device_type: str | None = None
) -> list[dict[str, Any]]:
    """The devices of some ranks, by rank: attempt, rank, device and offset_ns of each.

    Args:
        kind, value: the ranks, as in a :class:`Side`.
        device_type: None for all.
    """
    rows = reading.share("tracks").select(["attempt", "rank", "device", "offset_ns"])
    if device_type is not None:
        names = rows["device"]
        rows = rows.filter(
            pc.or_(pc.equal(names, device_type), pc.starts_with(names, pattern=f"{device_type}:"))
        )
    if kind == "rank":
        rows = rows.filter(pc.equal(rows["rank"], int(value)))
    elif kind != "all":
        places = reading.share("heat_ranks")
        groups = places["host_name" if kind == "host" else kind].cast(pa.string())
        mine = places.filter(pc.equal(groups, value)).select(["rank", "attempt"])
        rows = rows.join(mine, ["rank", "attempt"], join_type="left semi")
    order = [(name, "ascending") for name in ("rank", "attempt", "device")]
    return list(rows.sort_by(order).to_pylist())


def check_ranks(reading: Reading, of: Side) -> None:
    """Raises NOT_FOUND where the session has no such ranks: they hold nothing for another reason."""
    own = _own(reading, of)
    if not devices_of(own, of.kind, of.value):
        what = f"no rank {of.value}" if of.kind == "rank" else f"no rank that reported {of.kind}={of.value}"
        what = "no rank with events" if of.kind == "all" else what
        raise RankmemError(
            Code.NOT_FOUND,
            f"session {own.session.session_id} has {what}",
            "rankmem ranks lists ranks and coordinates",
        )


def _own(reading: Reading, of: Side) -> Reading:
    """A reading of the side's session."""
    state = session_of(reading, of)
    return reading if state is reading.session else Reading(queries=reading.queries, session=state)


def _seqs(own: Reading, of: Side) -> dict[Key, int | None]:
    """The event of each device that a moment has one of, also of devices that are not the side's."""
    if of.moment == "peak":
        return _peaks(own)
    if of.moment == "job":
        return _by_device(job_shares(own, own.session))
    given: dict[str, Value] = {"first": of.first + (own.session.origin_ns if of.moment == "time" else 0)}
    if of.moment == "seq":
        given["rank"] = int(of.value)
    name = f"side_points_{of.moment}"
    key = (own.queries.target, own.session.session_id, own.session.watermark, name, repr(given))
    found = _by_device(_events.get(key, lambda: own.ask(name, **given)))
    if of.moment != "seq":
        return found
    highest = _peaks(own)  # of several attempts that one is meant
    return {each: found[each] for each in found if each in highest}


def _peaks(own: Reading) -> dict[Key, int | None]:
    """Of each device of a rank the event of its peak, in the attempt in which it stood highest."""
    found: dict[tuple[int, str], tuple[Key, int | None]] = {}
    columns = own.share("tracks").select(["attempt", "rank", "device", "peak_seq"])
    for attempt, rank, device, seq in zip(*columns.to_pydict().values(), strict=True):
        found.setdefault((rank, device), ((attempt, rank, device), seq))  # the highest comes first
    return dict(found.values())


def _by_device(rows: pa.Table) -> dict[Key, int | None]:
    columns = rows.select(["attempt", "rank", "device", "seq"]).to_pydict()
    return {
        (attempt, rank, device): seq for attempt, rank, device, seq in zip(*columns.values(), strict=True)
    }
