"""The allocations that failed: what was asked for, what there was, who held it, and what came before.

Stage: page, in the thread of a request. The answers are those of ``rankmem oom``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast, get_args

import pyarrow as pa

from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.parameters import DEVICE, RANK, SEQ, choice, integer, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import NoParameters, SessionRoute
from rankmem_aggregator.query.types import BlockBy
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError

EVENTS_MAX: Final = 1_000
"""Before a failure."""
_TEXTS: Final = ("stream", "stack_id")
"""Numbers that a browser's may not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureAsked:
    """Parameters of ``/oom_held`` and ``/oom_ranks``: which failure, by its columns of ``/oom``."""

    rank: int = parameter(RANK, "global rank")
    attempt: int = parameter(RANK, "which start of the workers")
    device: str = parameter(DEVICE, "device type and index")
    seq: int = parameter(SEQ, "the event that failed")
    by: str = parameter(choice(get_args(BlockBy)), "grouping of what was held", default="category")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEventsAsked:
    """Parameters of ``/oom_events``."""

    rank: int = parameter(RANK, "global rank")
    attempt: int = parameter(RANK, "which start of the workers")
    device: str = parameter(DEVICE, "device type and index")
    seq: int = parameter(SEQ, "the last event")
    limit: int = parameter(integer(1, EVENTS_MAX), "events at most", default=EVENTS_MAX)


def oom(reading: Reading, asked: NoParameters) -> pa.Table:
    """The failures, the earliest first.

    Columns: those of ``Queries.oom`` but time_utc; stream and stack_id are texts; and allocator, settings (of
    the device).
    """
    rows = reading.show("failures", **reading.ask("failed_ranks").to_pylist()[0])
    devices = {
        (row["attempt"], row["rank"], row["device"]): row
        for row in reading.ask("device_settings").to_pylist()
    }
    failures = rows.to_pylist()
    found = [devices.get((row["attempt"], row["rank"], row["device"]), {}) for row in failures]
    rows = reading.relative(rows.drop_columns(["time_utc"]), "time_ns")
    for name in _TEXTS:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, rows[name].cast(pa.string()))
    rows = rows.append_column("allocator", pa.array([row.get("allocator") for row in found], pa.string()))
    rows = rows.append_column("settings", pa.array([row.get("settings") for row in found], pa.string()))
    return reading.answer(rows.replace_schema_metadata(None), exact=True, source="oom_overview")


def oom_held(reading: Reading, asked: FailureAsked) -> pa.Table:
    """What was alive at a failure, by any grouping: group, live_bytes, live_allocations, largest_bytes."""
    place: dict[str, Any] = {
        "attempt": asked.attempt, "rank": asked.rank, "device": asked.device, "seq": asked.seq,
    }  # fmt: skip
    rows = reading.queries.oom_held(reading.session.session_id, by=cast(BlockBy, asked.by), **place)
    reading.shown_as(
        as_sql(query_text("oom_held"), {"session": reading.session.session_id, "by": asked.by, **place})
    )
    kept = rows.select(["group_name", "live_bytes", "live_allocations", "largest_bytes"])
    return reading.answer(
        kept.replace_schema_metadata(None), exact=True, source="held_at_points", by=asked.by
    )


def oom_ranks(reading: Reading, asked: FailureAsked) -> pa.Table:
    """What every rank held at the instant of a failure. Columns: those of ``Queries.held_at``."""
    place: dict[str, Any] = {"attempt": asked.attempt, "rank": asked.rank, "device": asked.device}
    at_ns = reading.ask("failed_at", **place, seq=asked.seq)["time_ns"].to_pylist()
    if not at_ns:
        raise RankmemError(
            Code.NOT_FOUND,
            f"no allocation failed at event {asked.seq} of rank {asked.rank}",
            "choose one of the list",
        )
    rows = reading.queries.held_at(at_ns[0], reading.session.session_id)
    reading.shown_as(
        as_sql(query_text("held_at"), {"session": reading.session.session_id, "time_ns": at_ns[0]})
    )
    rows = reading.relative(rows.replace_schema_metadata(None), "time_ns")
    return reading.answer(rows, exact=True, source="held_at", at_ns=at_ns[0] - reading.session.origin_ns)


def oom_events(reading: Reading, asked: LastEventsAsked) -> pa.Table:
    """The last events up to a failure, the latest first. Columns: those of ``sql/page/oom_events.sql``."""
    track = reading.track(asked.rank, asked.attempt, asked.device)
    rows = reading.show(
        "oom_events",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        offset_ns=track.offset_ns,
        seq=asked.seq,
        at_most=asked.limit,
    )
    return reading.answer(reading.relative(rows, "time_ns"), exact=True, source="memory_event")


ROUTES: Final = (
    SessionRoute(path="/oom", parameters=NoParameters, answer=oom),
    SessionRoute(path="/oom_held", parameters=FailureAsked, answer=oom_held),
    SessionRoute(path="/oom_ranks", parameters=FailureAsked, answer=oom_ranks),
    SessionRoute(path="/oom_events", parameters=LastEventsAsked, answer=oom_events),
)
