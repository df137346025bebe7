"""A call's row beyond its own records: the forward call of a backward one, and what is recomputation.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's calls and the sequence ranges of
the calls that ended before. Out: for each call its module, annotation and forward call.

**The rule** (PyProf's): a call in backward carries the thread and the autograd sequence number of the node
that it runs in, or ran just after: what the engine does around nodes (sums of gradients, AccumulateGrad)
has no number of its own and belongs to the node that made the gradient. The forward call is the one on that
thread whose numbers enclose it; of nested ones the innermost. The backward call takes its module and
annotation.

**Recomputation.** A checkpoint runs forward calls within backward: reentrant within its own node, otherwise
in whichever node asks first for a tensor that was not kept. Such a call shows a module's call or the
checkpoint's code in its stack, nearer than the entry to backward. Without a stack (it allocated nothing, or
stacks are off) it has a module of its own while autograd records. It keeps its module and has no forward
call. Compiled graphs recompute within one call, and nothing distinguishes that.

Memory is bounded: a range is forgotten FORWARD_RECORDS_MAX records after its call ended, counted in the
log, so that the answer does not depend on where batches were cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import Phase
from rankmem_ship.pairing.calls import Calls
from rankmem_ship.pairing.state import ABSENT, RANGE_DTYPE, Array, joined, rows_at

FORWARD_RECORDS_MAX: Final = 1 << 20
"""How far back a forward call is found: five steps of the largest trainings; 32 MiB a rank at worst."""
_SEQUENCE_BITS: Final = np.uint64(40)
"""Autograd sequence numbers of a thread: 10^12 of them."""
_SEQUENCE_MASK: Final = np.uint64((1 << 40) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Of each call of the table; ids are 0 where there is none."""

    module: Array
    annotation: Array
    forward_call_id: Array
    """int64."""
    forward_stack: Array
    recomputed: Array
    """bool."""


def attribute(
    ranges: Array, calls: Calls, next_seq: int, are_recomputing: Callable[[Array], Array]
) -> tuple[Array, Attribution]:
    """The ranges after a batch, and what its calls are attributed to.

    Args:
        ranges: RANGE_DTYPE, sorted by key: of calls that ended before the batch.
        calls: the batch's.
        next_seq: where the log goes on after it.
        are_recomputing: which stacks show a forward within backward.
    """
    table = calls.table
    recomputed = _recomputed(calls, are_recomputing)
    ranges, made, made_by = _with_ranges(ranges, calls, next_seq)
    asked = np.flatnonzero(calls.ended & (table["forward_thread"] != ABSENT) & ~recomputed)
    place = _find_forward(ranges, calls, asked)
    asked, found = asked[place != ABSENT], rows_at(ranges, place[place != ABSENT])
    forward_call_id = np.zeros(len(table), np.int64)
    forward_call_id[asked] = found["call_id"]
    forward_stack = np.zeros(len(table), np.uint32)
    forward_stack[asked] = found["stack"]
    within = calls.place(found["call_id"])
    module = _inherited(table["module"], asked, found["module"], within)
    own = table["annotation"]
    inherited = _inherited(own, asked, found["annotation"], within)
    annotation = np.where(own != 0, own, inherited)
    ranges["module"][made], ranges["annotation"][made] = module[made_by], annotation[made_by]
    return ranges, Attribution(
        module=module,
        annotation=annotation,
        forward_call_id=forward_call_id,
        forward_stack=forward_stack,
        recomputed=recomputed,
    )


def _recomputed(calls: Calls, are_recomputing: Callable[[Array], Array]) -> Array:
    by_engine = np.flatnonzero(calls.ended & (calls.table["phase"] == Phase.BACKWARD))
    stack = calls.stack[by_engine]
    without_stack = calls.with_grad[by_engine] & (calls.table["module"][by_engine] != 0)
    recomputed = np.zeros(len(calls.table), np.bool_)
    recomputed[by_engine] = np.where(stack != 0, are_recomputing(stack), without_stack)
    return recomputed


def _with_ranges(ranges: Array, calls: Calls, next_seq: int) -> tuple[Array, Array, Array]:
    """The ranges with those of the calls ended in this batch and without those too old.

    Returns:
        (ranges, the places of the new ones in it, the calls that made these).
    """
    made_by = np.flatnonzero(calls.ended & (calls.sequence_first != ABSENT))
    rows = np.zeros(len(made_by), RANGE_DTYPE)
    rows["key"] = _range_keys(calls.table["thread"][made_by], calls.sequence_first[made_by])
    rows["last"] = calls.sequence_last[made_by]
    rows["call_id"] = calls.table["call_id"][made_by]
    rows["end_seq"] = calls.end_seq[made_by]
    rows["module"] = calls.table["module"][made_by]
    rows["annotation"] = calls.table["annotation"][made_by]
    rows["stack"] = calls.stack[made_by]
    by_key = np.argsort(rows["key"], kind="stable")
    rows, made_by = rows_at(rows, by_key), made_by[by_key]
    kept = _without_old(ranges, next_seq)
    together = joined([kept, rows])
    if not len(kept) or not len(rows) or kept["key"][-1] < rows["key"][0]:  # one thread makes them, in order
        return together, np.arange(len(kept), len(together)), made_by
    order = np.argsort(together["key"], kind="stable")
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    return rows_at(together, order), place_of[len(kept) :], made_by


def _without_old(ranges: Array, next_seq: int) -> Array:
    """The ranges without those that no call finds any more, once these are a quarter: it is a copy."""
    young = ranges["end_seq"] >= next_seq - FORWARD_RECORDS_MAX
    return ranges if 4 * int(young.sum()) >= 3 * len(ranges) else rows_at(ranges, young)


def _find_forward(ranges: Array, calls: Calls, asked: Array) -> Array:
    """For each call asked about: the place of its forward call's range, ABSENT where none is known."""
    sequence = calls.table["forward_sequence"][asked]
    place = _innermost(ranges, _range_keys(calls.table["forward_thread"][asked], sequence), sequence)
    end_seq = calls.end_seq[asked]
    of_forward = np.append(ranges["end_seq"], ABSENT)[place]
    known = (of_forward < end_seq) & (of_forward >= end_seq - FORWARD_RECORDS_MAX)
    found: Array = np.where(known, place, ABSENT)
    return found


def _innermost(ranges: Array, keys: Array, sequences: Array) -> Array:
    """For each key the place of the innermost range around it.

    The range that begins last before the key is it, or has ended before the key. Then one around that range
    may go on: those that reach over the beginning of the next one are looked at, level by level.
    """
    found = np.full(len(keys), ABSENT)
    asking = np.arange(len(keys))
    level = np.arange(len(ranges))
    while len(level) and len(asking):
        firsts, lasts = ranges["key"][level], ranges["last"][level]
        near = np.searchsorted(firsts, keys[asking], side="right") - 1
        right = (near >= 0) & (firsts[near] >> _SEQUENCE_BITS == keys[asking] >> _SEQUENCE_BITS)
        right &= lasts[near] >= sequences[asking]
        found[asking[right]] = level[near[right]]
        asking = asking[~right]
        if len(asking):
            reach_over = (firsts[:-1] & ~_SEQUENCE_MASK | lasts[:-1].astype(np.uint64)) >= firsts[1:]
            level = level[:-1][reach_over]
    return found


def _inherited(own: Array, heirs: Array, values: Array, within: Array) -> Array:
    """``own`` with the heirs' replaced by their forward call's value, where that has one.

    Args:
        values: of the forward calls, by their ranges; within: their places in the batch's table, ABSENT
            for those that ended before. Those may be heirs themselves (a backward of a backward).
    """
    result = own.copy()
    here = within != ABSENT
    while True:
        forward = np.where(here, result[within], values)
        after = result.copy()
        after[heirs] = np.where(forward != 0, forward, own[heirs])
        if np.array_equal(after, result):
            return result
        result = after


def _range_keys(threads: Array, sequences: Array) -> Array:
    return (threads.astype(np.uint64) << _SEQUENCE_BITS) | sequences.astype(np.uint64)
