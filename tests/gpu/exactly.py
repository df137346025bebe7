"""Compares what rankmem stored of a device with what torch's allocator says of itself.

Stage: outside the way of the data. Pure functions: in come rows of the database and what ``train.py`` wrote
of the same process, out come findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gpu.checks import Found, equal

Event = tuple[str, int, int, int, str]
"""Action, address (0 for oom), bytes, stream, pool ("" for the default one)."""
_U64: Final = 1 << 64
_SNAPSHOT: Final = "snapshot"
"""Who looks at the allocator makes such an event: it is compared with none."""


def ours(rows: Sequence[Sequence[Any]]) -> list[Event]:
    """Events out of rows of ``recorded.EVENTS``, until the training took its last snapshot: what its end
    frees is not in the history."""
    last = max((at for at, row in enumerate(rows) if row[0] == _SNAPSHOT), default=len(rows))
    return [
        (action, (address or 0) % _U64, size, (stream or 0) % _U64, pool or "")
        for action, address, size, stream, pool, *_ in rows[:last]
        if action != _SNAPSHOT
    ]


def theirs(events: Iterable[Sequence[Any]]) -> list[Event]:
    """Events out of the allocator's history; of an oom the address is the free bytes there."""
    return [
        (
            action,
            0 if action == "oom" else address % _U64,
            size,
            stream % _U64,
            "" if pool == [0, 0] else ".".join(map(str, pool)),
        )
        for action, address, size, stream, pool in events
        if action != _SNAPSHOT
    ]


def judge_events(rows: Sequence[Sequence[Any]], history: Sequence[Sequence[Any]]) -> list[Found]:
    """Whether every event is the same, in the same order; and which there were."""
    seen, wanted = ours(rows), theirs(history)
    if not any(event[4] for event in wanted):  # this torch's history tells no pool
        seen = [(*event[:4], "") for event in seen]
    same = next(
        (at for at, (a, b) in enumerate(zip(seen, wanted, strict=False)) if a != b),
        min(len(seen), len(wanted)),
    )
    text = f"{same} of {len(wanted)} equal"
    if seen != wanted:
        text += f"; {len(seen)} recorded; at {same}: {seen[same : same + 1]} for {wanted[same : same + 1]}"
    kinds = Counter(event[0] for event in wanted)
    return [
        Found(what="events equal the history's", ok=seen == wanted and bool(wanted), measured=text),
        Found(what="kinds of events", ok=None, measured=dict(kinds)),
    ]


def judge_peaks(row: dict[str, Any], told: dict[str, Any]) -> list[Found]:
    """The stored peaks of a device (a row of peak_by_rank) against memory_stats()."""
    stats = told["stats"]
    names = (
        ("requested", "requested_bytes"), ("allocated", "allocated_bytes"), ("active", "active_bytes"),
        ("reserved", "reserved_bytes"),
    )  # fmt: skip
    found = [
        equal(f"peak of {ours} bytes", row[f"peak_{ours}_bytes"], stats[f"{name}.all.peak"])
        for ours, name in names
    ]
    found.append(equal("max_memory_allocated", row["peak_allocated_bytes"], told["max_allocated"]))
    return [*found, Found(what="complete", ok=row["complete"], measured=row["complete"])]


def judge_end(rows: Sequence[Sequence[Any]], told: dict[str, Any]) -> list[Found]:
    """What is alive and reserved after the last event of the history, against the snapshot's segments."""
    live: dict[int, int] = {}
    reserved = 0
    sign = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    for action, address, size, *_ in ours(rows):
        if action == "alloc":
            live[address] = size
        elif action == "free_completed":
            live.pop(address, None)
        reserved += sign.get(action, 0) * size
    wanted = {int(address): block[0] for address, block in told["live"].items()}
    differ = sorted(set(live.items()) ^ set(wanted.items()))
    text = f"{len(live)} of {len(wanted)}" + (f"; differ: {differ[:4]}" if differ else "")
    return [
        Found(what="blocks alive at the end", ok=not differ, measured=text),
        equal("reserved at the end", reserved, told["segments_bytes"]),
    ]


def judge_course(rows: Sequence[Sequence[Any]], told: dict[str, Any]) -> Found:
    """Requested, allocated and active bytes after as many allocations and frees as the training had made at
    each step's end."""
    wanted = {(made, freed): tuple(figures) for made, freed, *figures in told["figures"]}
    made = freed = 0
    reached: dict[tuple[int, int], tuple[int | None, ...]] = {}
    for action, *_, requested, allocated, _reserved, active in rows:
        made += action == "alloc"
        freed += action == "free_requested"
        reached[made, freed] = (requested, allocated, active)
    differ = [(step, reached.get(at), bytes_) for step, (at, bytes_) in enumerate(wanted.items())]
    differ = [each for each in differ if each[1] != each[2]]
    text = f"{len(wanted) - len(differ)} of {len(wanted)} equal" + (f"; {differ[:2]}" if differ else "")
    return Found(what="bytes at the end of each step", ok=bool(wanted) and not differ, measured=text)


def judge_streams(rows: Sequence[Sequence[Any]]) -> list[Found]:
    """Frees that waited for another stream: requested, and completed only later."""
    events = ours(rows)
    waiting: set[int] = set()
    late = 0
    for number, (action, address, *_) in enumerate(events):
        if action == "free_requested":
            following = events[number + 1][:2] if number + 1 < len(events) else None
            if following != ("free_completed", address):
                waiting.add(address)
        elif action == "free_completed" and address in waiting:
            waiting.remove(address)
            late += 1
    streams = Counter(event[3] for event in events if event[0] == "alloc")
    return [
        Found(what="frees that waited", ok=late > 0, measured=f"{late}; {len(waiting)} wait at the end"),
        Found(what="streams", ok=len(streams) > 1, measured={str(key): n for key, n in streams.items()}),
    ]


def judge_pools(rows: Sequence[Sequence[Any]]) -> list[Found]:
    """Private pools."""
    pools = Counter(event[4] for event in ours(rows) if event[0] == "alloc")
    return [Found(what="private pools", ok=len(pools) > 1, measured=dict(pools))]


def judge_mapped(rows: Sequence[Sequence[Any]]) -> list[Found]:
    """Expandable segments."""
    kinds = Counter(event[0] for event in ours(rows))
    measured = {name: kinds[name] for name in ("segment_map", "segment_unmap", "segment_alloc")}
    ok = kinds["segment_map"] > 0 and kinds["segment_unmap"] > 0
    return [Found(what="maps and unmaps", ok=ok, measured=measured)]
