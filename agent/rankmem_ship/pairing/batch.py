"""One step of pairing: records and holes in, the next state and the batch's facts out.

Stage: pairing; shipper process. :func:`advance` is a pure function: it changes nothing that it is given,
and the facts are a function of the records so far and of where the batch before ended. The rows are made
from the facts by rankmem_ship.pairing.rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankmem_agent.spool.layout import UNKNOWN, Action, Kind, Missing, Outcome
from rankmem_ship.pairing.attribution import Attribution, attribute
from rankmem_ship.pairing.block_table import Settled, block_table, describe_outside, settle
from rankmem_ship.pairing.calls import Calls, follow_calls
from rankmem_ship.pairing.comparing import Comparison, compare
from rankmem_ship.pairing.dependence import Dependence, dependence_of
from rankmem_ship.pairing.devices import device_codes, with_devices
from rankmem_ship.pairing.endings import with_endings
from rankmem_ship.pairing.markers import Markers, follow_markers
from rankmem_ship.pairing.model import with_modules, with_weights
from rankmem_ship.pairing.phases import phases_of
from rankmem_ship.pairing.points import Points, Totals, points_of, totals_of
from rankmem_ship.pairing.rounds import NEVER, Rounds, rounds_of
from rankmem_ship.pairing.state import ABSENT, Array, Known, PairingState, of_kind, rows_at
from rankmem_ship.pairing.steps import steps_of
from rankmem_ship.pairing.templates import learn
from rankmem_ship.pairing.texts import Texts
from rankmem_ship.spool_reader.reader import Gap
from rankmem_ship.spool_reader.segments import named

_OF_DEVICE = (
    Kind.EVENT,
    Kind.PREEXISTING,
    Kind.COUNTERS,
    Kind.PEAKS,
    Kind.SAMPLE,
    Kind.DEVICE,
    Kind.ROUNDING,
    Kind.COMMUNICATOR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The facts of a batch, before they become rows."""

    records: Array
    seq: Array
    time_ns: Array
    points: Points
    totals: Totals
    blocks: Array
    """BLOCK_DTYPE: alive before the batch, then made in it; Points.block numbers them."""
    records_due: Array
    """BLOCK_DTYPE: blocks whose allocation_record goes out."""
    ends_due: Array
    """BLOCK_DTYPE: blocks whose allocation_end goes out."""
    calls: Calls
    calls_due: Array
    """Indices of the calls whose operator_call goes out."""
    attribution: Attribution
    """Of each call."""
    markers: Markers
    dependence: Dependence
    rounds: Rounds
    comparison: Comparison
    templates: Array
    """TEMPLATE_DTYPE, after the batch but for its categories."""
    differs: Array
    """TEMPLATE_DTYPE: places of templates in which another block was observed."""
    modules_due: Array
    """MODULE_DTYPE."""
    frozen_modules: Array
    """String ids of the paths of modules whose parameters want no gradient, all of them."""
    weights_due: Array
    """WEIGHT_DTYPE."""
    steps_due: Array
    """STEP_DTYPE: parts of steps that ended."""
    gaps: tuple[Gap, ...]
    losses: Array
    """Indices of the LOST records."""
    offs: Array
    """Indices of the OFF records."""
    final: bool


def advance(
    state: PairingState,
    records: Array,
    seq: Array,
    gaps: tuple[Gap, ...],
    *,
    texts: Texts,
    fallback_base_ns: int,
    final: bool,
) -> tuple[PairingState, Batch]:
    """The state after the records, and their facts.

    Args:
        records: RECORD_DTYPE, in log order; seq: their positions.
        gaps: holes in the same slice of the log.
        texts: what names and stacks of the spool mean.
        fallback_base_ns: realtime minus monotonic from meta.json, for a log whose first record is lost.
        final: the log ends here: all that waits goes out.
    """
    base_ns = state.clock_base_ns
    if base_ns is None:
        base_ns = _clock_base(records, fallback_base_ns)
    time_ns = np.maximum.accumulate(
        np.concatenate([[state.last_ns], records["time_ns"].astype(np.int64) + base_ns])
    )[1:]
    of_device = np.isin(records["kind"], _OF_DEVICE)
    devices = with_devices(state.devices, device_codes(records)[of_device])
    holes = _holes(state, seq, gaps)
    markers = follow_markers(
        state.markers, records, time_ns, np.searchsorted(seq, holes), texts.are_torchs_own
    )
    calls = follow_calls(state.calls, records, seq, time_ns, base_ns, markers)
    with_ends = with_endings(state.live, devices, records, seq, time_ns)
    points = points_of(state.live, devices, *with_ends)
    ends = seq[records["kind"] == Kind.STEP]
    first_end, first_hole = (int(each[0]) if len(each) else NEVER for each in (ends, holes))
    blocks, num_preexisting = block_table(state, points, first_end, first_hole)
    comparison = compare(_compared_before(state), records, seq, holes, points, blocks)
    totals, devices = totals_of(points, blocks["size"], devices, carries=not state.is_reduced)
    _add_call_sums(calls, points, blocks)
    next_seq = int(seq[-1]) + 1 if len(seq) else state.next_seq
    ranges, attribution = attribute(state.ranges, calls, next_seq, texts.are_recomputing)
    phases = phases_of(state.threads, state.step, records, shows=not state.is_reduced)
    threads, step = phases.after(seq)
    describe_outside(blocks, points, np.searchsorted(seq, points.seq), phases, markers)
    now_ns = int(time_ns[-1]) if len(time_ns) else state.last_ns
    settled = settle(state, blocks, calls, attribution, comparison, now_ns=now_ns, final=final)
    learned = learn(state.templates, settled.records_due, comparison)
    dependence = dependence_of(_dependence_before(state), records, seq, calls, texts.are_optimizers)
    rounds = rounds_of(_rounds_before(state), records, seq, calls)
    modules = with_modules(state.modules, records)
    weights = with_weights(state.weights, records, seq, settled.blocks, devices)
    steps_due, steps = steps_of(state.steps, points, totals, records, seq)
    batch = Batch(
        records=records,
        seq=seq,
        time_ns=time_ns,
        points=points,
        totals=totals,
        blocks=blocks,
        records_due=settled.records_due,
        ends_due=settled.ends_due,
        calls=calls,
        calls_due=np.arange(len(calls.table)) if final else np.flatnonzero(calls.ended),
        attribution=attribution,
        markers=markers,
        dependence=dependence,
        rounds=rounds,
        comparison=comparison,
        templates=learned.templates,
        differs=learned.differs,
        modules_due=rows_at(modules, ~modules["sent"]),
        frozen_modules=modules["path"][modules["frozen"]],
        weights_due=rows_at(weights, ~weights["sent"]),
        steps_due=steps_due,
        gaps=gaps,
        losses=np.flatnonzero(records["kind"] == Kind.LOST),
        offs=np.flatnonzero(records["kind"] == Kind.OFF),
        final=final,
    )
    after = dataclasses.replace(
        state,
        live=settled.live,
        ended=settled.ended,
        calls=rows_at(calls.table, ~calls.ended),
        ranges=ranges,
        markers=markers.still_open(),
        threads=threads,
        step=step,
        modules=_all_sent(modules),
        weights=_all_sent(weights),
        devices=_named(devices, records),
        steps=steps,
        parts=comparison.parts,
        compared=_still_waiting(comparison.blocks, settled),
        templates=learned.templates,
        step_ends=comparison.step_ends,
        made_in_step=comparison.made_in_step,
        is_mixed=state.is_mixed and not len(ends),
        is_doubtful=bool((state.is_doubtful or len(holes)) and len(comparison.parts)),
        clock_base_ns=base_ns if len(records) else state.clock_base_ns,
        last_ns=now_ns,
        num_preexisting=num_preexisting,
        template_blocks=state.template_blocks + settled.num_template,
        prefix_blocks=state.prefix_blocks + settled.num_prefix,
        audit_differences=state.audit_differences + len(learned.differs),
        **_counted(state, batch),
    )
    return after, batch


def _dependence_before(state: PairingState) -> tuple[int, ...]:
    nodes, forward, engine = state.last_nodes_seq, state.last_forward_seq, state.last_engine_seq
    return nodes, forward, engine, state.last_outside_seq, state.last_optimizer_seq


def _rounds_before(state: PairingState) -> tuple[int, int, int, int]:
    return state.last_phase, state.last_break_seq, state.last_run_node_seq, state.last_step_seq


def _holes(state: PairingState, seq: Array, gaps: tuple[Gap, ...]) -> Array:
    """Where in the log records follow behind missing ones, ascending."""
    after = [gap.sequence_last + 1 for gap in gaps]
    if len(seq):
        after += seq[1:][np.diff(seq) > 1].tolist()
        if state.next_seq and int(seq[0]) > state.next_seq:
            after.append(int(seq[0]))
    return np.unique(np.array(after, np.int64))


def _compared_before(state: PairingState) -> tuple[Array, Array, Array, int]:
    return state.parts, state.compared, state.step_ends, state.made_in_step


def _still_waiting(compared: Array, settled: Settled) -> Array:
    if not len(compared):
        return compared
    alive = settled.live["allocation_id"][~settled.live["sent"]]
    return rows_at(compared, np.isin(compared["allocation_id"], [*alive, *settled.ended["allocation_id"]]))


def _clock_base(records: Array, fallback_ns: int) -> int:
    """The difference from monotonic to host times: the first record's pair.

    One base for the whole log: a step of the host's clock then moves nothing, and the offset to the
    aggregator is measured against the same base (see rankmem_ship.clock).
    """
    if len(records) and records["kind"][0] == Kind.CLOCK:
        return int(named(records, Kind.CLOCK)["realtime_ns"][0]) - int(records["time_ns"][0])
    return fallback_ns


def _add_call_sums(calls: Calls, points: Points, blocks: Array) -> None:
    place = calls.place(points.call_id.astype(np.uint64))
    inside = points.is_event & (place != ABSENT)
    made = np.flatnonzero(inside & points.allocates)
    np.add.at(calls.table["allocated_bytes"], place[made], points.size[made])
    np.add.at(calls.table["allocations"], place[made], 1)
    freed = np.flatnonzero(inside & (points.action == Action.FREE_COMPLETED) & (points.block != ABSENT))
    np.add.at(calls.table["freed_bytes"], place[freed], blocks["size"][points.block[freed]])
    gone = np.flatnonzero(inside & (points.action == Action.FREE_COMPLETED) & points.unplaced)
    np.add.at(calls.table["freed_bytes"], place[gone], points.size[gone])


def _all_sent(rows: Array) -> Array:
    if rows["sent"].all():
        return rows
    rows = rows.copy()
    rows["sent"] = True
    return rows


def _named(devices: Array, records: Array) -> Array:
    """The devices with the string ids of their DEVICE records."""
    described = of_kind(records, Kind.DEVICE)
    for code, string_id in zip(device_codes(described), described["facts"], strict=True):
        devices["name_id"][devices["code"] == code] = string_id
    return devices


def _counted(state: PairingState, batch: Batch) -> dict[str, Any]:
    points = batch.points
    is_read = (batch.blocks["by"] == Known.EVIDENCE) & (batch.blocks["allocation_id"] >= state.next_seq)
    missed = of_kind(batch.records, Kind.DETAIL)["outcome"] == Outcome.MISSED
    frees = points.is_event & (points.action == Action.FREE_COMPLETED) & (points.block == ABSENT)
    frees &= ~points.unplaced
    implied = points.implied_free[points.implied_free != ABSENT]
    lost = sum(gap.sequence_last - gap.sequence_first + 1 for gap in batch.gaps)
    lost += int(num_lost(batch.records[batch.losses]).sum())
    kind = batch.records["kind"]
    offs = named(batch.records[batch.offs], Kind.OFF)
    notes = tuple(of_kind(batch.records, Kind.NOTE)["facts"].tolist())
    ends = [int(batch.seq[-1]) if len(batch.seq) else -1, *(gap.sequence_last for gap in batch.gaps)]
    nodes, forward, engine, outside, optimizer = batch.dependence.last()
    phase, last_break, node, step = batch.rounds.last()
    return {
        "last_nodes_seq": nodes,
        "last_forward_seq": forward,
        "last_engine_seq": engine,
        "last_outside_seq": outside,
        "last_optimizer_seq": optimizer,
        "last_phase": phase,
        "last_break_seq": last_break,
        "last_run_node_seq": node,
        "last_step_seq": step,
        "next_seq": max(state.next_seq, max(ends) + 1),
        "num_events": state.num_events + int(points.is_event.sum()),
        "evidence_blocks": state.evidence_blocks + int(is_read.sum()),
        "steady_misses": state.steady_misses + int(missed.sum()),
        "num_lost": state.num_lost + lost,
        "num_unknown_frees": state.num_unknown_frees + int(frees.sum()),
        "implied_free_bytes": state.implied_free_bytes + int(batch.blocks["size"][implied].sum()),
        "is_off": state.is_off or bool((offs["missing"] != Missing.NAMES).any()),
        "infers": state.infers and not bool((offs["stops_inference"] == 1).any()),
        "notes": state.notes + notes,
        "saw_end": state.saw_end or bool((kind == Kind.END).any()),
    }


def num_lost(losses: Array) -> Array:
    """Events that each of these LOST records stands for; 1 where it is not known how many."""
    known = named(losses, Kind.LOST)["num_events"]
    number: Array = np.where(known == UNKNOWN, 1, known).astype(np.int64)
    return number
