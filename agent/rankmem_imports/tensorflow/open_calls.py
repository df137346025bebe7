"""Calls of a recording whose ends are known when they begin: recorded in the order of time.

Stage: readers; the process of ``rankmem import``. In: the call around each event; out: CALL_BEGIN just
before its first event and CALL_END at its end. Held: the calls that are open.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from rankmem_agent.spool.layout import NO_PHASE, NO_SEQUENCE, UNKNOWN, Kind
from rankmem_imports.replay import Replay


class KnownCall(NamedTuple):
    """An operator's call."""

    number: int
    """Its id, from 1."""
    operator: str
    started_ns: int
    ended_ns: int
    thread: int
    phase: int = NO_PHASE
    module: str = ""


class OpenCalls:
    """The calls of one rank."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._ends: list[tuple[int, int]] = []
        self._open: dict[int, KnownCall] = {}

    def begin(self, call: KnownCall, time_ns: int) -> None:
        """Records the call at its first event; nothing if it is open already."""
        if call.number in self._open:
            return
        self._open[call.number] = call
        heapq.heappush(self._ends, (call.ended_ns, call.number))
        strings = self._replay.strings
        self._replay.record(
            Kind.CALL_BEGIN,
            time_ns=time_ns,
            phase=call.phase,
            call_id=call.number,
            thread=call.thread,
            started_ns=call.started_ns,
            module=strings.intern(call.module) if call.module else 0,
            step=UNKNOWN,
            operator_name=strings.intern(call.operator),
        )

    def end(self, before_ns: int | None) -> None:
        """Ends those that end before an instant; all for None."""
        while self._ends and (before_ns is None or self._ends[0][0] < before_ns):
            ended_ns, number = heapq.heappop(self._ends)
            call = self._open.pop(number)
            self._replay.record(
                Kind.CALL_END,
                time_ns=ended_ns,
                call_id=number,
                thread=call.thread,
                started_ns=call.started_ns,
                sequence_first=NO_SEQUENCE,
                sequence_last=NO_SEQUENCE,
            )
