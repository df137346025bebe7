"""The table of a batch's blocks: what each is, when it was freed, and whether its row goes out.

Stage: pairing; shipper process, pure functions over arrays. In: the blocks alive before a batch and its
points; out: one table (BLOCK_DTYPE) of those and the ones made, described by calls and phases around them,
and from it the rows that are due and the blocks that stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankmem_agent.spool.layout import Action, Kind
from rankmem_ship.pairing.attribution import Attribution
from rankmem_ship.pairing.calls import Calls
from rankmem_ship.pairing.columns import ints, nulls
from rankmem_ship.pairing.comparing import Comparison
from rankmem_ship.pairing.devices import block_keys, dense_numbers, device_codes
from rankmem_ship.pairing.markers import Markers
from rankmem_ship.pairing.phases import Phases
from rankmem_ship.pairing.points import Points
from rankmem_ship.pairing.state import (
    ABSENT,
    BLOCK_DTYPE,
    Array,
    Known,
    PairingState,
    joined,
    of_kind,
    rows_at,
)
from rankmem_ship.pairing.templates import take_over


def block_table(state: PairingState, points: Points, first_end: int, first_hole: int) -> tuple[Array, int]:
    """The blocks alive before and those made, with their frees; and the count of older ones.

    Args:
        first_end: where in the log the first step of the batch ends; beyond it where none does.
        first_hole: likewise where records are missing.
    """
    made = np.flatnonzero(points.makes_block)
    rows = np.zeros(len(made), BLOCK_DTYPE)
    older = ~points.is_event[made]
    rows["key"] = block_keys(points.device[made], points.address[made].astype(np.uint64))
    rows["allocation_id"] = np.where(
        older, -1 - (state.num_preexisting + np.cumsum(older) - 1), points.seq[made]
    )
    rows["address"] = points.address[made]
    rows["size"] = points.size[made]
    rows["stream"] = points.stream[made]
    rows["pool"] = points.pool[made]
    rows["stack"] = points.stack[made]
    rows["call_id"] = np.where(older, 0, points.call_id[made])
    rows["allocated_ns"] = np.where(older, ABSENT, points.time_ns[made])
    for column in ("free_requested_ns", "free_requested_seq", "freed_ns", "freed_seq"):
        rows[column] = ABSENT
    for column in ("step", "phase", "like"):
        rows[column] = ABSENT
    rows["device"] = points.device[made]
    rows["preexisting"] = older
    rows["by"] = _known_by(state, rows, first_end, first_hole)
    blocks = joined([state.live, rows])
    _write_frees(blocks, points)
    return blocks, state.num_preexisting + int(older.sum())


def _known_by(state: PairingState, made: Array, first_end: int, first_hole: int) -> Array:
    """Known, of each block made in a batch. While detail is reduced, the tap writes no call but one that it
    reads at an allocation; in the rest of a step of which the beginning was not observed, calls lack what
    goes on around them."""
    if state.is_reduced:
        otherwise = Known.WAITS if state.is_steady else Known.NONE
        is_read = (made["call_id"] != 0) | (state.is_steady & (made["stack"] != 0))  # outside of operators
        by = np.where(is_read, Known.EVIDENCE, otherwise)
    elif state.is_mixed:
        by = np.where(made["allocation_id"] < first_end, Known.EVIDENCE, Known.OBSERVED)
    else:
        by = np.full(len(made), Known.OBSERVED)
    if not state.is_reduced and len(state.parts):  # steady steps may have begun where records are missing
        is_doubtful = state.is_doubtful | (made["allocation_id"] >= first_hole)
        by = np.where(is_doubtful & (made["call_id"] == 0), Known.WAITS, by)
    known: Array = np.where(made["preexisting"], Known.AS_GIVEN, by)
    return known


def _write_frees(blocks: Array, points: Points) -> None:
    """Note in the (new) table of blocks when each was freed."""
    matched = points.block != ABSENT
    requested = np.flatnonzero(matched & (points.action == Action.FREE_REQUESTED))[::-1]  # the first wins
    requested = requested[blocks["free_requested_seq"][points.block[requested]] == ABSENT]
    blocks["free_requested_ns"][points.block[requested]] = points.time_ns[requested]
    blocks["free_requested_seq"][points.block[requested]] = points.seq[requested]
    freed = np.flatnonzero(matched & (points.action == Action.FREE_COMPLETED))
    blocks["freed_ns"][points.block[freed]] = points.time_ns[freed]
    blocks["freed_seq"][points.block[freed]] = points.seq[freed]
    implied = np.flatnonzero(points.implied_free != ABSENT)
    blocks["freed_ns"][points.implied_free[implied]] = points.time_ns[implied]
    blocks["freed_seq"][points.implied_free[implied]] = points.seq[implied]


def older_block_bytes(blocks: Array, records: Array, devices: Array) -> pa.Array:
    """The column block_bytes: what the records of older blocks say; they go out in the batch that lists them.

    Args:
        blocks: BLOCK_DTYPE, those whose rows are made.
        records: of the batch.
        devices: as they stand after it.
    """
    if not blocks["preexisting"].any():
        return nulls(len(blocks), pa.int64())
    listed = of_kind(records, Kind.PREEXISTING)
    listed = listed[listed["action"] == Action.ALLOC]
    if not len(listed):  # the rows of all blocks alive go out again, long after
        return nulls(len(blocks), pa.int64())
    keys = block_keys(dense_numbers(devices, device_codes(listed)), listed["address"])
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], blocks["key"], side="right") - 1
    found = blocks["preexisting"] & (place >= 0) & (keys[order][place] == blocks["key"])
    sizes = np.where(found, listed["block_bytes"][order][place], 0)
    return ints(sizes, null=sizes == 0)


def describe_outside(blocks: Array, points: Points, places: Array, phases: Phases, markers: Markers) -> None:
    """Phase, step and annotation of the blocks made outside of calls, from the calls and markers around."""
    made = np.flatnonzero(points.makes_block)
    outside = np.flatnonzero(points.is_event[made] & (points.call_id[made] == 0))
    if not len(outside):
        return
    at = made[outside]
    number = len(blocks) - len(made) + outside
    blocks["phase"][number], blocks["step"][number] = phases.at(points.thread[at], places[at])
    blocks["annotation"][number] = markers.annotations(points.thread[at], places[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The blocks that go out and those that stay; all BLOCK_DTYPE."""

    records_due: Array
    ends_due: Array
    blocks: Array
    """Batch.blocks, with the facts of their calls where their rows went out."""
    live: Array
    """Alive after the batch."""
    ended: Array
    """Freed, but their rows wait."""
    num_template: int
    """Of the blocks that waited for their part's end: known by a template as a whole."""
    num_prefix: int
    """And by its beginning."""


def settle(
    state: PairingState,
    blocks: Array,
    calls: Calls,
    attribution: Attribution,
    comparison: Comparison,
    *,
    now_ns: int,
    final: bool,
) -> Settled:
    """Decide what goes out."""
    waiting = joined([blocks, state.ended])
    waited = waiting["by"] == Known.WAITS
    holds = take_over(waiting, state.templates, comparison, now_ns, final=final)
    place = calls.place(waiting["call_id"])
    is_open = calls.are_open(place)
    due = ~waiting["sent"] & ~holds & (~is_open | final)
    freed = waiting["freed_seq"] != ABSENT
    told_twice = final & ~freed & (waiting["free_requested_seq"] != ABSENT) & ~waiting["sent_free_requested"]
    ends_due = rows_at(waiting, waiting["sent"] & (freed | told_twice))
    _describe(waiting, due & (place != ABSENT), place, calls, attribution)
    is_lost = due & (place == ABSENT) & (waiting["call_id"] != 0) & (waiting["operator"] == 0)
    is_lost &= waiting["by"] == Known.OBSERVED
    waiting["by"][is_lost] = Known.NONE
    records_due = rows_at(waiting, due)
    waiting["sent_free_requested"] |= due & (waiting["free_requested_seq"] != ABSENT)
    waiting["sent"] |= due
    alive = np.flatnonzero(~freed[: len(blocks)])
    return Settled(
        records_due=records_due,
        ends_due=ends_due,
        blocks=waiting[: len(blocks)],
        live=rows_at(waiting, alive[np.argsort(waiting["key"][alive], kind="stable")]),
        ended=rows_at(waiting, freed & ~waiting["sent"]),
        num_template=int((waited & (waiting["by"] == Known.TEMPLATE)).sum()),
        num_prefix=int((waited & (waiting["by"] == Known.TEMPLATE_PREFIX)).sum()),
    )


def _describe(blocks: Array, chosen: Array, place: Array, calls: Calls, attribution: Attribution) -> None:
    """Copy the facts of the call to the chosen blocks."""
    at = np.flatnonzero(chosen)
    own = place[at]
    for column in ("operator", "step", "phase"):
        blocks[column][at] = calls.table[column][own]
    blocks["stack"][at] = calls.stack[own]
    for column in ("module", "annotation", "forward_call_id", "forward_stack", "recomputed"):
        blocks[column][at] = getattr(attribution, column)[own]
