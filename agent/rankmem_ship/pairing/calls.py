"""Operator calls: opened by CALL_BEGIN, closed by CALL_END, with the facts of the records between.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's call records and the calls open
before. Out: a table of all calls that the batch touches, and which of them ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankmem_agent.spool.layout import NO_SEQUENCE, Action, Kind, Phase
from rankmem_ship.pairing.markers import Markers
from rankmem_ship.pairing.state import ABSENT, CALL_DTYPE, Array, joined, of_kind, rows_at
from rankmem_ship.spool_reader.segments import named


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls open before a batch and those begun in it, sorted by call_id."""

    table: Array
    """CALL_DTYPE."""
    ended: Array
    """bool, of each call: it ended in this batch."""
    ended_ns: Array
    """int64, where ended."""
    sequence_first: Array
    """int64, ABSENT if the call made none or has not ended; likewise sequence_last."""
    sequence_last: Array
    stack: Array
    """Stack's string-table id, 0 for none; of a call that has not ended, that of its first block, where
    known."""
    end_seq: Array
    """Position of CALL_END in the log."""
    with_grad: Array
    """bool, where ended: autograd was recording, so what it made without a node needs no gradient."""

    def place(self, call_ids: Array) -> Array:
        """Index of each call in the table, ABSENT where it is not there (0, ended before, or lost)."""
        known = self.table["call_id"]
        if not len(known):
            return np.full(len(call_ids), ABSENT)
        if int(known[-1] - known[0]) == len(known) - 1:  # as a rule: they are numbered as they begin
            offset = call_ids.astype(np.uint64, copy=False) - known[0]  # wraps around below the first
            return np.where(offset < len(known), offset.astype(np.int64), ABSENT)
        place = np.minimum(np.searchsorted(known, call_ids), len(known) - 1)
        found: Array = np.where(known[place] == call_ids, place, ABSENT)
        return found

    def are_open(self, place: Array) -> Array:
        """Of indices as :meth:`place` gives them: whether the call is there and has not ended."""
        unended: Array = np.append(~self.ended, False)[place]  # ABSENT is the one appended
        return unended


def follow_calls(
    open_calls: Array, records: Array, seq: Array, time_ns: Array, base_ns: int, markers: Markers
) -> Calls:
    """The calls of a batch, from their begin, forward and end records.

    Args:
        open_calls: CALL_DTYPE, sorted by call_id: open before the batch.
        records: the batch's records, RECORD_DTYPE; seq, time_ns: their positions and host times.
        base_ns: what makes a record's monotonic time a host time.
        markers: the batch's: a call has the annotation open on its thread when it begins.
    """
    kind = records["kind"]
    begins = np.flatnonzero(kind == Kind.CALL_BEGIN)
    begun = named(rows_at(records, begins), Kind.CALL_BEGIN)
    table = _with_begun(open_calls, begun, base_ns, markers.annotations(begun["thread"], begins))
    calls = Calls(
        table=table,
        ended=np.zeros(len(table), np.bool_),
        ended_ns=np.zeros(len(table), np.int64),
        sequence_first=np.full(len(table), ABSENT),
        sequence_last=np.full(len(table), ABSENT),
        stack=table["stack"].copy(),
        end_seq=np.zeros(len(table), np.int64),
        with_grad=np.zeros(len(table), np.bool_),
    )
    _set_forward(calls, of_kind(records, Kind.CALL_FORWARD))
    ends = np.flatnonzero(kind == Kind.CALL_END)
    _set_ends(calls, named(rows_at(records, ends), Kind.CALL_END), seq[ends], time_ns[ends])
    _set_stacks_of_open(calls, records)
    return calls


def _with_begun(open_calls: Array, begins: Array, base_ns: int, annotation: Array) -> Array:
    rows = np.zeros(len(begins), CALL_DTYPE)
    rows["call_id"] = begins["call_id"]
    rows["started"] = begins["started_ns"].astype(np.int64) + base_ns
    rows["step"] = begins["step"].astype(np.int64)
    rows["operator"] = begins["operator_name"]
    rows["module"] = begins["module"]
    rows["annotation"] = annotation
    rows["thread"] = begins["thread"]
    rows["phase"] = begins["phase"].view(np.int8)  # NO_PHASE is ABSENT
    rows["node"] = begins["node"]
    rows["forward_thread"] = ABSENT
    rows["forward_sequence"] = ABSENT
    table = joined([open_calls, rows])
    _, first = np.unique(table["call_id"], return_index=True)  # sorts; the first begin of a call counts
    return rows_at(table, first)


def _set_stacks_of_open(calls: Calls, records: Array) -> None:
    """The stacks that first blocks bring, of the calls that go on."""
    going_on = calls.table["call_id"][~calls.ended]
    of_them = (records["kind"] == Kind.EVENT) & np.isin(records["call_id"], going_on)
    events = named(rows_at(records, of_them), Kind.EVENT)
    first = events[(events["action"] == Action.ALLOC) & (events["stack_id"] != 0)]
    place = calls.place(first["call_id"])
    calls.table["stack"][place] = calls.stack[place] = first["stack_id"]


def _set_forward(calls: Calls, forwards: Array) -> None:
    """Mark backward calls; of several forward links in a call the first counts."""
    place = calls.place(forwards["call_id"])
    new = np.flatnonzero(place != ABSENT)
    new = new[calls.table["forward_thread"][place[new]] == ABSENT]
    place, first = np.unique(place[new], return_index=True)
    links = forwards[new[first]]
    calls.table["forward_thread"][place] = links["forward_thread"].astype(np.int32)
    calls.table["forward_sequence"][place] = links["forward_sequence"].astype(np.int64)
    calls.table["phase"][place] = Phase.BACKWARD


def _set_ends(calls: Calls, ends: Array, seq: Array, time_ns: Array) -> None:
    place = calls.place(ends["call_id"])
    known = place != ABSENT
    place, ends = place[known], rows_at(ends, known)
    calls.ended[place] = True
    calls.ended_ns[place] = time_ns[known]
    calls.end_seq[place] = seq[known]
    calls.stack[place] = ends["stack_id"]
    calls.with_grad[place] = ends["with_grad"] != 0
    made = ends["sequence_first"] != NO_SEQUENCE
    calls.sequence_first[place[made]] = ends["sequence_first"][made].astype(np.int64)
    calls.sequence_last[place[made]] = ends["sequence_last"][made].astype(np.int64)
