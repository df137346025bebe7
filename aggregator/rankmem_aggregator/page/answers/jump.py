"""Places to go to in a device's log: its peak, the next higher one, an out-of-memory error, a step, a time.

Stage: page, in the thread of a request. Every place is found from events, exactly; buckets only say where to
look for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page.answers.events import event_at
from rankmem_aggregator.page.parameters import (
    DEVICE,
    RANK,
    SEQ,
    TIME,
    choice,
    integer,
    parameter,
)
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.query.types import Value
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.errors import Code, RankmemError

KINDS: Final = (
    "here", "peak", "next_higher", "previous_higher", "next_event", "previous_event", "oom", "next_step",
    "previous_step", "step", "time",
)  # fmt: skip
READ_SEQS: Final = 4096
"""Positions of the log that are read at once on the way up to a peak."""
READS_MAX: Final = 64
"""A rise over more positions than these reads cover ends where they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpAsked:
    """Parameters of ``/jump``."""

    rank: int = parameter(RANK, "global rank")
    to: str = parameter(choice(KINDS), "where to")
    seq: int | None = parameter(SEQ, "from this position of its log; default: its peak", default=None)
    at_ns: int | None = parameter(TIME, "of time: to the last event by it", name="at", default=None)
    step: int | None = parameter(integer(0, NUMBER_MAX), "of step: its number", default=None)
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)


def jump(reading: Reading, asked: JumpAsked) -> pa.Table:
    """The place: one row, or none where there is none.

    Columns: seq, time_ns (since the session's start), requested (bytes after it); of a step also its number
    and begin_ns, end_ns, else NULL.
    """
    track = reading.track(asked.rank, asked.attempt, asked.device)
    now = asked.seq if asked.seq is not None else track.peak_seq
    found: dict[str, int | None] = {"step": None, "begin_ns": None, "end_ns": None}
    if asked.to in ("step", "next_step", "previous_step"):
        found = _step(reading, track, asked, now)
        seq = found.pop("seq")
    else:
        seq = _place(reading, track, asked, now)
    rows = _events(reading, track, seq, seq) if seq is not None else None
    if rows is not None and not rows.num_rows and asked.to == "here":
        raise RankmemError(
            Code.NOT_FOUND, f"no event of {track.device} is at {seq}", "G takes a time, a seq or a step"
        )
    place: dict[str, list[int | None]] = {"seq": [], "time_ns": [], "requested": []}
    place |= {name: [] for name in ("step", "begin_ns", "end_ns")}
    if rows is not None and rows.num_rows:
        row = rows.to_pylist()[0]
        place |= {"seq": [row["seq"]], "requested": [row["requested"]]}
        place["time_ns"] = [row["time_ns"] - reading.session.origin_ns]
    elif found["end_ns"] is not None:
        place |= {"seq": [None], "requested": [None], "time_ns": [found["end_ns"]]}
    if place["time_ns"]:
        place |= {name: [value] for name, value in found.items()}
    schema = pa.schema([(name, pa.int64()) for name in place])
    return reading.answer(pa.table(place, schema=schema), exact=True, source="memory_event")


def _place(reading: Reading, track: Track, asked: JumpAsked, now: int) -> int | None:
    if asked.to == "peak":
        return track.peak_seq
    if asked.to == "here":
        return now
    if asked.to == "time":
        if asked.at_ns is None:
            raise RankmemError(Code.INVALID, "at is missing", "give at, ns since the session's start")
        return event_at(reading, track, asked.at_ns)
    if asked.to == "oom":
        rows = reading.show("jump_oom", **_whose(track), seq=now if asked.seq is not None else -NUMBER_MAX)
        return int(rows["seq"][0].as_py()) if rows.num_rows else None
    is_forward = asked.to.startswith("next")
    if asked.to.endswith("event"):
        return _beside(reading, track, now, is_forward=is_forward)
    return _higher(reading, track, now, is_forward=is_forward)


def _beside(reading: Reading, track: Track, now: int, *, is_forward: bool) -> int | None:
    """The event right after or before a position."""
    bucket = _bucket(reading, track, now, -NUMBER_MAX, is_forward=is_forward)
    if bucket is None:
        return None
    seqs = _events(reading, track, *bucket)["seq"].to_numpy()
    beyond = seqs[seqs > now] if is_forward else seqs[seqs < now]
    return None if not len(beyond) else int(beyond[0] if is_forward else beyond[-1])


def _higher(reading: Reading, track: Track, now: int, *, is_forward: bool) -> int | None:
    """The nearest peak that is higher than now: the first event above, followed for as long as it rises."""
    before = _events(reading, track, now - READ_SEQS, now)["requested"].to_pylist()
    above = before[-1] if before else -NUMBER_MAX
    # A bucket may be higher only in the part that lies on the other side.
    place = now
    for _ in range(READS_MAX):
        bucket = _bucket(reading, track, place, above, is_forward=is_forward)
        if bucket is None:
            return None
        rows = _events(reading, track, *bucket)
        seq, value = rows["seq"].to_numpy(), rows["requested"].to_numpy()
        beyond = (value > above) & ((seq > now) if is_forward else (seq < now))
        if np.any(beyond):
            first = np.flatnonzero(beyond)[0 if is_forward else -1]
            return _risen(reading, track, int(seq[first]), is_forward=is_forward)
        place = bucket[1] if is_forward else bucket[0]
    return None


def _risen(reading: Reading, track: Track, seq: int, *, is_forward: bool) -> int:
    """The event that is highest before memory falls, on from this one; of equals the first in the log."""
    best, value = seq, None
    place = seq
    for _ in range(READS_MAX):
        span = (place, place + READ_SEQS) if is_forward else (place - READ_SEQS, place)
        rows = _events(reading, track, *span).to_pylist()
        for row in rows if is_forward else reversed(rows):
            if value is not None and row["requested"] < value:
                return best
            if value is None or row["requested"] > value or not is_forward:
                best, value = row["seq"], row["requested"]
        if not rows or (place := span[1] if is_forward else span[0]) == seq:
            break
    return best


def _step(reading: Reading, track: Track, asked: JumpAsked, now: int) -> dict[str, int | None]:
    nothing: dict[str, int | None] = dict.fromkeys(("seq", "step", "begin_ns", "end_ns"))
    if asked.to == "step" and asked.step is None:
        raise RankmemError(Code.INVALID, "step is missing", "give the number of a step")
    here = _events(reading, track, now, now)
    at_ns = here["time_ns"][0].as_py() if here.num_rows else track.peak_ns
    if asked.at_ns is not None:
        at_ns = asked.at_ns + reading.session.origin_ns
    rows = reading.show(
        "jump_step",
        **_whose(track),
        offset_ns=track.offset_ns,
        step=asked.step if asked.to == "step" else None,
        at_ns=at_ns,
        by=-1 if asked.to == "previous_step" else 1,
    )
    return reading.relative(rows, "begin_ns", "end_ns").to_pylist()[0] if rows.num_rows else nothing


def _whose(track: Track) -> dict[str, Value]:
    return {"attempt": track.attempt, "rank": track.rank, "device": track.device}


def _bucket(
    reading: Reading, track: Track, seq: int, above: int, *, is_forward: bool
) -> tuple[int, int] | None:
    rows = reading.ask("jump_bucket", **_whose(track), seq=seq, above=above, forward=is_forward).to_pylist()
    return (rows[0]["seq_first"], rows[0]["seq_last"]) if rows else None


def _events(reading: Reading, track: Track, first_seq: int, last_seq: int) -> pa.Table:
    return reading.ask(
        "jump_events",
        **_whose(track),
        offset_ns=track.offset_ns,
        first_seq=first_seq,
        last_seq=last_seq,
    )


ROUTES: Final = (SessionRoute(path="/jump", parameters=JumpAsked, answer=jump),)
