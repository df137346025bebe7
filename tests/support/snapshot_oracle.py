"""A memory snapshot's peaks, found the slow and obvious way: no code of ours but the pickle's reader.

The trace is walked event by event over plain dictionaries, from what must have been alive before it: a block
is older if the first word of it is a free, or if ``segments`` has it and the trace has no word of its
address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DeviceTruth:
    """One device."""

    older: dict[int, int] = field(default_factory=dict)
    """Requested bytes by address, before the trace."""
    totals: list[int] = field(default_factory=list)
    """Requested bytes after each event of the trace."""
    live: dict[int, int] = field(default_factory=dict)
    """After the trace."""
    reserved: int = 0
    """Bytes of the segments, at the end."""
    listed: dict[int, int] = field(default_factory=dict)
    """Requested bytes by address of the blocks in use in segments, at the end."""


def truth_of(raw: dict[str, Any]) -> dict[int, DeviceTruth]:
    """By the number of each device that has anything."""
    found: dict[int, DeviceTruth] = {}
    for segment in raw["segments"]:
        truth = found.setdefault(segment["device"], DeviceTruth())
        truth.reserved += segment["total_size"]
        where = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                history = block.get("history") or [{}]
                truth.listed[where] = block.get("requested_size") or history[0].get(
                    "real_size", block["size"]
                )
            where += block["size"]
    for number, trace in enumerate(raw["device_traces"]):
        if trace:
            _walk(found.setdefault(number, DeviceTruth()), trace)
    for truth in found.values():
        if not truth.totals:
            truth.older = truth.live = dict(truth.listed)
    return found


def _walk(truth: DeviceTruth, trace: list[dict[str, Any]]) -> None:
    seen: set[int] = set()
    for entry in trace:
        if entry["action"] not in ("alloc", "free_requested", "free_completed") or entry["addr"] in seen:
            continue
        seen.add(entry["addr"])
        if entry["action"] != "alloc":
            truth.older[entry["addr"]] = entry["size"]
    truth.older |= {where: size for where, size in truth.listed.items() if where not in seen}
    truth.live = dict(truth.older)
    total = sum(truth.live.values())
    for entry in trace:
        if entry["action"] == "alloc":
            total += entry["size"] - truth.live.get(entry["addr"], 0)
            truth.live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            total -= truth.live.pop(entry["addr"], 0)
        truth.totals.append(total)
    assert total == sum(truth.live.values())
