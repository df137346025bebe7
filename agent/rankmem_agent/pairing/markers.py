"""Markers: ranges that the user or the framework named, closed by their MARKER_END.

Stage: pairing; shipper process, pure functions over arrays. A marker's depth is the number of markers
open on its thread when it began. Its row goes out when it has ended, or at the end of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.pairing.state import ABSENT, MARKER_DTYPE, Array, joined, rows_at
from rankmem_agent.spool.layout import Kind

OPEN_MARKERS_MAX: Final = 65_536
"""Markers open at once; a program that never closes its ranges loses the oldest, not the shipper's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """The markers of a batch."""

    table: Array
    """MARKER_DTYPE: open before or begun in the batch."""
    ended_ns: Array
    """int64, of each; ABSENT while open."""

    def still_open(self) -> Array:
        """The rows of the table that have not ended."""
        rows: Array = self.table[self.ended_ns == ABSENT][-OPEN_MARKERS_MAX:]
        return rows


def follow_markers(open_markers: Array, records: Array, time_ns: Array) -> Markers:
    """The markers open before a batch and begun in it, with their ends."""
    kind = records["kind"]
    steps = np.flatnonzero((kind == Kind.MARKER_BEGIN) | (kind == Kind.MARKER_END))
    if not len(steps):
        return Markers(table=open_markers, ended_ns=np.full(len(open_markers), ABSENT))
    moves, times = rows_at(records, steps), time_ns[steps]
    is_begin = moves["kind"] == Kind.MARKER_BEGIN
    begun = np.zeros(int(is_begin.sum()), MARKER_DTYPE)
    begun["marker_id"] = moves["a"][is_begin]
    begun["started_ns"] = times[is_begin]
    begun["name"] = moves["e"][is_begin]
    begun["kind"] = moves["action"][is_begin]
    begun["thread"] = moves["thread"][is_begin]
    begun["depth"] = _depths(open_markers, moves["thread"], is_begin)[is_begin]
    table = joined([open_markers, begun])
    return Markers(table=table, ended_ns=_ends(table, moves[~is_begin]["a"], times[~is_begin]))


def _depths(open_markers: Array, threads: Array, is_begin: Array) -> Array:
    """Markers open on the thread before each begin or end."""
    depth = np.zeros(len(threads), np.int64)
    change = np.where(is_begin, 1, -1)
    for thread in np.unique(threads):
        own = threads == thread
        before = int((open_markers["thread"] == thread).sum())
        depth[own] = before + np.cumsum(change[own]) - change[own]
    return np.maximum(depth, 0)


def _ends(table: Array, marker_ids: Array, times: Array) -> Array:
    ended_ns = np.full(len(table), ABSENT)
    order = np.argsort(table["marker_id"], kind="stable")
    sorted_ids = table["marker_id"][order]
    if len(table) and len(marker_ids):
        place = np.minimum(np.searchsorted(sorted_ids, marker_ids), len(table) - 1)
        found = sorted_ids[place] == marker_ids
        ended_ns[order[place[found]]] = times[found]
    return ended_ns
