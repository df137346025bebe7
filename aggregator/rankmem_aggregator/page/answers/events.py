"""Events of a device one by one, with the blocks they belong to; and a stack, frame by frame.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    SEQ,
    TIME,
    choices,
    integer,
    parameter,
)
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.stacks import lines_of
from rankmem_protos.errors import Code, RankmemError

EVENTS_MAX: Final = 1000
"""Events of an answer: what a table can show."""
ACTIONS: Final = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom", "snapshot", "unknown",
)  # fmt: skip
STACK: Final = integer(-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsAsked:
    """Parameters of ``/events``."""

    rank: int = parameter(RANK, "global rank")
    seq: int | None = parameter(SEQ, "around this position of its log; default: its peak", default=None)
    at_ns: int | None = parameter(TIME, "or around the last event by this time", name="at", default=None)
    count: int = parameter(integer(1, EVENTS_MAX), "events, half of them before", default=100)
    actions: tuple[str, ...] = parameter(choices(ACTIONS), "which, with commas between", default=())
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)


def events(reading: Reading, asked: EventsAsked) -> pa.Table:
    """Events in the order of the log; columns: those of ``sql/page/events.sql``, and line after stack_id.

    Facts: ``around``, the position.
    """
    if asked.seq is not None and asked.at_ns is not None:
        raise RankmemError(Code.INVALID, "seq and at are two places", "give one of them")
    track = reading.track(asked.rank, asked.attempt, asked.device)
    around = asked.seq if asked.seq is not None else track.peak_seq
    if asked.at_ns is not None:
        around = event_at(reading, track, asked.at_ns)
    after = asked.count // 2
    rows = reading.show(
        "events",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        offset_ns=track.offset_ns,
        around=around,
        before=asked.count - after,
        after=after,
        actions=",".join(asked.actions) or None,
    )
    rows = reading.relative(rows, "time_ns")
    stacks = rows["stack_id"].to_pylist()
    line_of = lines_of(reading, (stack for stack in stacks if stack is not None))
    rows = rows.append_column("line", pa.array([line_of.get(stack) for stack in stacks], pa.string()))
    return reading.answer(
        rows,
        exact=True,
        source="memory_event",
        around=around,
        rank=track.rank,
        attempt=track.attempt,
        device=track.device,
    )


def event_at(reading: Reading, track: Track, at_ns: int) -> int:
    """The last event by a time since the session's start, or the first where there is none by then."""
    rows = reading.ask(
        "event_at",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        offset_ns=track.offset_ns,
        at_ns=at_ns + reading.session.origin_ns,
    )
    return int(rows["seq"][0].as_py())


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAsked:
    """Parameters of ``/stack``."""

    stack_id: int = parameter(STACK, "the stack")


def stack(reading: Reading, asked: StackAsked) -> pa.Table:
    """The frames of a stack, the one nearest to the operator first: as in ``sql/page/stack_frames.sql``."""
    rows = reading.show("stack_frames", stack_id=asked.stack_id)
    return reading.answer(rows, exact=True, source="stack_frame")


ROUTES: Final = (
    SessionRoute(path="/events", parameters=EventsAsked, answer=events),
    SessionRoute(path="/stack", parameters=StackAsked, answer=stack),
)
