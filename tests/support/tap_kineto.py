"""The tap's events of a recorded script beside Kineto's, which torch itself records at the same time.

A script to compare runs under :func:`tap_process.record_process`, between two STEP records and within
``torch.profiler``, as :data:`PROFILED` does with a body. Both sides become lists of (address, bytes), frees
with a minus, in order, so that they can be held against each other one by one.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

from rankmem_agent.spool.layout import Action, Kind
from tap_process import Recording

PROFILED = """
from torch.profiler import ProfilerActivity, profile
tap.enable(ALL)
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    tap.record(Kind.STEP, step=1)
{body}
    tap.record(Kind.STEP, step=2)
profiler.export_chrome_trace(str(folder.parent / "trace.json"))
tap.close()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What both saw of one thread between the two STEP records."""

    ours: list[tuple[int, int]]
    theirs: list[tuple[int, int]]
    older_frees: int
    """Frees that we saw of blocks older than the window, which Kineto does not know."""

    def difference(self) -> str:
        """The first place where they differ, in words; empty if they are equal."""
        for place, (our, their) in enumerate(zip(self.ours, self.theirs, strict=False)):
            if our != their:
                return f"event {place}: ours {our[0]:#x} {our[1]}, Kineto's {their[0]:#x} {their[1]}"
        if len(self.ours) != len(self.theirs):
            return f"{len(self.ours)} events of ours, {len(self.theirs)} of Kineto's"
        return ""


def profiled(body: str) -> str:
    """A script that runs ``body`` recorded and profiled."""
    return PROFILED.format(body=textwrap.indent(textwrap.dedent(body), "    "))


def compare(recording: Recording, trace: Path) -> Compared:
    """Both sides of a script whose last line of interest is the second STEP record."""
    records = recording.records
    events, seq = records[records["kind"] == Kind.EVENT], recording.seq[records["kind"] == Kind.EVENT]
    first, last = recording.seq[records["kind"] == Kind.STEP]
    window = events[(seq > first) & (seq < last)]
    assert len(set(window["thread"].tolist())) == 1
    ours: list[tuple[int, int]] = []
    live: dict[int, int] = {}
    older_frees = 0
    for event in window:
        address, size_bytes = int(event["a"]), int(event["b"])
        if event["action"] == Action.ALLOC:
            assert address not in live, "a reused address seen before its free"
            live[address] = size_bytes
            ours.append((address, size_bytes))
        elif address in live:
            ours.append((address, -live.pop(address)))
        else:
            older_frees += 1
    return Compared(ours=ours, theirs=kineto_memory_events(trace), older_frees=older_frees)


def kineto_memory_events(trace: Path) -> list[tuple[int, int]]:
    """The ``[memory]`` events of a trace in order: address, bytes."""
    events = json.loads(trace.read_text())["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    memory.sort(key=lambda event: (event["ts"], event["args"].get("Ev Idx", 0)))
    assert len({event["tid"] for event in memory}) == 1
    return [(event["args"]["Addr"], event["args"]["Bytes"]) for event in memory]
