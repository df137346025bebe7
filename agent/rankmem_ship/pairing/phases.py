"""Phase and step of what happens outside of calls, from the calls around.

Stage: pairing; shipper process, pure functions over arrays. A call records its phase and step itself. A block
made between calls has the step that goes on: that of the last call begun in the process, or the one after a
STEP. Its phase is that of its own thread's last call, and ``other`` once a step has ended since. A thread
that has begun no call has no phase, and before the process's first call there is no step: not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import Kind, Phase
from rankmem_ship.pairing.state import ABSENT, THREAD_DTYPE, Array, joined, rows_at
from rankmem_ship.spool_reader.segments import named

THREADS_MAX: Final = 4096
"""Threads remembered, those of the latest calls: a program that starts threads for ever costs no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The phases and steps of a batch."""

    threads: Array
    """THREAD_DTYPE, before the batch; likewise step."""
    step: int
    shows: bool
    """Whether a call shows what goes on around it: not where most are not recorded."""
    begins: Array
    """The batch's CALL_BEGIN records, at these places of the batch."""
    begin_places: Array
    ends: Array
    """Its STEP records, and their places."""
    end_places: Array

    def at(self, threads: Array, places: Array) -> tuple[Array, Array]:
        """(phase, step) on each thread at each place of the batch, ABSENT where not known."""
        phase = np.full(len(threads), ABSENT)
        last_end = _last(self.end_places, places)
        for thread in np.unique(threads) if self.shows else ():
            own = np.flatnonzero(threads == thread)
            calls = np.flatnonzero(self.begins["thread"] == thread)
            last = _last(self.begin_places[calls], places[own])
            before = self._phase_before(int(thread))
            at = self.begins["phase"][calls[last]].view(np.int8).astype(np.int64) if len(calls) else before
            phase[own] = np.where(last >= 0, at, before)
            begun = np.where(last >= 0, self.begin_places[calls[last]] if len(calls) else -1, -1)
            ended = np.where(last_end[own] >= 0, _at(self.end_places, last_end[own]), -1)
            phase[own] = np.where((ended > begun) & (phase[own] != ABSENT), Phase.OTHER, phase[own])
        return phase, self._steps(places, last_end)

    def after(self, seq: Array) -> tuple[Array, int]:
        """(threads, step) after the batch; ``seq``: positions of its records in the log."""
        end = np.array([len(seq)])
        step = int(self._steps(end, _last(self.end_places, end))[0])
        if not len(self.begins) and not len(self.ends):
            return self.threads, step
        rows = np.zeros(len(self.begins), THREAD_DTYPE)
        rows["thread"], rows["phase"] = self.begins["thread"], self.begins["phase"].view(np.int8)
        rows["seq"] = seq[self.begin_places]
        both = joined([self.threads, rows])[::-1]
        _, last = np.unique(both["thread"], return_index=True)
        threads = rows_at(both, last)
        if len(self.ends):
            ended = (threads["seq"] < seq[self.end_places[-1]]) & (threads["phase"] != ABSENT)
            threads["phase"][ended] = Phase.OTHER
        if len(threads) > THREADS_MAX:
            latest = np.sort(np.argsort(threads["seq"], kind="stable")[-THREADS_MAX:])
            threads = rows_at(threads, latest)
        return threads, step

    def _steps(self, places: Array, last_end: Array) -> Array:
        begun = _last(self.begin_places, places)
        by_call = np.where(begun >= 0, _at(self.begins["step"].astype(np.int64), begun), self.step)
        by_end = _at(self.ends["step"].astype(np.int64), last_end) + 1
        later = _at(self.end_places, last_end) > _at(self.begin_places, begun, ABSENT)
        steps: Array = np.where((last_end >= 0) & later, by_end, by_call)
        return steps

    def _phase_before(self, thread: int) -> int:
        row = np.flatnonzero(self.threads["thread"] == thread)
        return int(self.threads["phase"][row[0]]) if len(row) else ABSENT


def phases_of(threads: Array, step: int, records: Array, *, shows: bool) -> Phases:
    """The phases of a batch, with what was known before it."""
    begin_places = np.flatnonzero(records["kind"] == Kind.CALL_BEGIN)
    end_places = np.flatnonzero(records["kind"] == Kind.STEP)
    return Phases(
        threads=threads,
        step=step,
        shows=shows,
        begins=named(rows_at(records, begin_places), Kind.CALL_BEGIN),
        begin_places=begin_places,
        ends=named(rows_at(records, end_places), Kind.STEP),
        end_places=end_places,
    )


def _last(ascending: Array, places: Array) -> Array:
    """Index of the last of ``ascending`` before each place, -1 for none."""
    last: Array = np.searchsorted(ascending, places, side="left") - 1
    return last


def _at(values: Array, index: Array, default: int = 0) -> Array:
    """The values at these indices; ``default`` at -1."""
    picked: Array = np.append(values, default)[index]
    return picked
