"""Rows of the smaller tables: markers, steps, samples, out-of-memories, gaps, modules and parameters.

Stage: pairing; shipper process. In: a batch's facts; out: record batches. They are few compared with events.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_agent.spool.layout import (
    RECORDED_DETAILS,
    UNKNOWN,
    Action,
    DeviceType,
    Kind,
    MarkerKind,
    Outcome,
)
from rankmem_ship.pairing.batch import Batch, num_lost
from rankmem_ship.pairing.columns import (
    coded_names,
    dense_codes,
    ints,
    known,
    record_batch,
    rows_of,
    smalls,
    string_names,
)
from rankmem_ship.pairing.devices import dense_numbers, device_codes
from rankmem_ship.pairing.model import INPUTS_MAX, input_tensors, weight_rows
from rankmem_ship.pairing.rank_columns import RankColumns, are_on_host, pool_names
from rankmem_ship.pairing.stacks import Stacks
from rankmem_ship.pairing.state import ABSENT, Array
from rankmem_ship.spool_reader.segments import named

MARKER_KINDS: Final = tuple(kind.name.lower() for kind in MarkerKind)

Rows = tuple[str, pa.RecordBatch]


def fact_rows(
    whose: RankColumns, stacks: Stacks, batch: Batch, devices: Array
) -> list[tuple[str, pa.RecordBatch | None]]:
    """The rows of each of these tables, None for none. ``devices``: as they stand after the batch."""
    return [
        ("marker", _markers(whose, batch)),
        ("step", _steps(whose, batch)),
        ("step_input", _step_inputs(whose, batch)),
        ("step_bucket", _step_buckets(whose, batch.steps_due, devices)),
        ("process_sample", _process_samples(whose, batch, devices)),
        ("component_sample", _component_samples(whose, batch, devices)),
        ("oom", _ooms(whose, stacks, batch, devices)),
        ("older_segment", _older_segments(whose, batch, devices)),
        ("gap", _gaps(whose, batch)),
        ("control_change", _control_changes(whose, batch)),
        ("module", _modules(whose, batch.modules_due)),
        ("weight", _weights(whose, stacks, batch.weights_due)),
    ]


def _markers(whose: RankColumns, batch: Batch) -> pa.RecordBatch | None:
    ended_ns = batch.markers.ended_ns
    due = np.arange(len(ended_ns)) if batch.final else np.flatnonzero(ended_ns != ABSENT)
    if not len(due):
        return None
    table = batch.markers.table[due]
    columns = whose.of_rank(len(due)) | {
        "marker_id": ints(table["marker_id"]),
        "name": whose.required_names(table["name"]),
        "kind": coded_names(table["kind"].astype(np.int64), MARKER_KINDS),
        "depth": smalls(table["depth"]),
        "thread": smalls(table["thread"]),
        "started_ns": ints(table["started_ns"]),
        "ended_ns": known(ended_ns[due]),
    }
    return record_batch("marker", columns, len(due))


def _steps(whose: RankColumns, batch: Batch) -> pa.RecordBatch | None:
    at = np.flatnonzero(batch.records["kind"] == Kind.STEP)
    if not len(at):
        return None
    rows = named(batch.records[at], Kind.STEP)
    columns = whose.of_rank(len(at)) | {
        "step": ints(rows["step"]),
        "ended_ns": ints(batch.time_ns[at]),
        "seq": ints(batch.seq[at]),
        "optimizer": string_names(rows["optimizer"], whose.strings),
    }
    return record_batch("step", columns, len(at))


def _step_inputs(whose: RankColumns, batch: Batch) -> pa.RecordBatch | None:
    at = np.flatnonzero(batch.records["kind"] == Kind.INPUT)
    if not len(at):
        return None
    rows: list[dict[str, Any]] = []
    for place, record in zip(at, named(batch.records[at], Kind.INPUT), strict=True):
        call = {
            "step": int(record["step"]),
            "seq": int(batch.seq[place]),
            "time_ns": int(batch.time_ns[place]),
            "module": whose.strings.name(int(record["module"])) if record["module"] else None,
            "with_grad": bool(record["with_grad"]),
            "call_bytes": int(record["size_bytes"]),
            "num_left_out": min(int(record["num_left_out"]), INPUTS_MAX),
        }
        tensors = input_tensors(whose.strings.text(int(record["facts"])))
        rows += [call | tensor for tensor in tensors or [{}]]
    return _rows_of_rank(whose, "step_input", rows)


def _step_buckets(whose: RankColumns, parts: Array, devices: Array) -> pa.RecordBatch | None:
    if not len(parts):
        return None
    columns = whose.of_device(parts["device"], devices) | {
        "step": ints(parts["step"]),
        "seq_last": ints(parts["seq_last"]),
        "peak_bytes": ints(parts["peak"]),
        "peak_seq": ints(parts["peak_seq"]),
        "peak_ns": ints(parts["peak_ns"]),
        "last_bytes": ints(parts["last"]),
        "allocated_bytes": ints(parts["allocated"]),
        "num_allocations": ints(parts["allocations"]),
    }
    return record_batch("step_bucket", columns, len(parts))


def _process_samples(whose: RankColumns, batch: Batch, devices: Array) -> pa.RecordBatch | None:
    is_sample = batch.records["kind"] == Kind.SAMPLE
    at = np.flatnonzero(is_sample & (batch.records["device_type"] != DeviceType.PINNED))
    if not len(at):
        return None
    rows = named(batch.records[at], Kind.SAMPLE)
    figures = {
        name: _known_bytes(rows[name])
        for name in ("app_reserved_bytes", "device_used_bytes", "device_free_bytes", "device_total_bytes")
    }
    columns = whose.of_device(dense_numbers(devices, device_codes(rows)), devices) | figures
    columns |= {"time_ns": ints(batch.time_ns[at]), "seq": ints(batch.seq[at])}
    return record_batch("process_sample", columns, len(at))


def _component_samples(whose: RankColumns, batch: Batch, devices: Array) -> pa.RecordBatch | None:
    """The figures of torch's host allocator and of communicators: the tap sees none of their events."""
    records = batch.records
    is_communicator = records["kind"] == Kind.COMMUNICATOR
    is_pinned = (records["kind"] == Kind.SAMPLE) & (records["device_type"] == DeviceType.PINNED)
    at = np.flatnonzero(is_pinned | is_communicator)
    if not len(at):
        return None
    is_communicator = is_communicator[at]
    pinned, communicators = named(records[at], Kind.SAMPLE), named(records[at], Kind.COMMUNICATOR)
    used, codes = dense_codes(np.where(is_communicator, communicators["component"], 0))
    names = ("pinned_host", *(whose.strings.name(int(each)) for each in used))
    held = np.where(is_communicator, communicators["held_bytes"], pinned["pinned_reserved_bytes"])
    active = np.where(is_communicator, np.uint64(UNKNOWN), pinned["pinned_active_bytes"])
    columns = whose.of_device(dense_numbers(devices, device_codes(pinned)), devices) | {
        "time_ns": ints(batch.time_ns[at]),
        "component": coded_names(np.where(is_communicator, codes + 1, 0), names),
        "reserved_bytes": _known_bytes(held),
        "active_bytes": _known_bytes(active),
        "seq": ints(batch.seq[at]),
    }
    return record_batch("component_sample", columns, len(at))


def _known_bytes(figures: Array) -> pa.Array:
    return ints(figures.astype(np.int64), null=figures == UNKNOWN)


def _ooms(whose: RankColumns, stacks: Stacks, batch: Batch, devices: Array) -> pa.RecordBatch | None:
    points, totals = batch.points, batch.totals
    at = np.flatnonzero(points.is_event & (points.action == Action.OOM))
    if not len(at):
        return None
    numbers, call_id = points.device[at], points.call_id[at]
    on_host = are_on_host(devices)[numbers]
    place = batch.calls.place(call_id.astype(np.uint64))
    operator = batch.calls.table["operator"][np.maximum(place, 0)] if len(batch.calls.table) else place
    stack = np.append(batch.calls.stack, np.zeros(1, np.uint32))[place]  # ABSENT is -1: the last
    stack = np.where(stack == 0, points.stack[at], stack)
    columns = whose.of_device(numbers, devices) | {
        "seq": ints(points.seq[at]),
        "time_ns": ints(points.time_ns[at]),
        "size_bytes": ints(points.size[at]),
        "device_free_bytes": _known_bytes(points.pool[at]),
        "requested_bytes": ints(totals.requested[at]),
        "reserved_bytes": ints(totals.reserved[at], null=on_host),
        "stream": ints(points.stream[at], null=on_host),
        "call_id": ints(call_id, null=call_id == 0),
        "operator": string_names(np.where(place == ABSENT, 0, operator), whose.strings),
        "stack_id": ints(stacks.hashes(stack), null=stack == 0),
    }
    return record_batch("oom", columns, len(at))


def _older_segments(whose: RankColumns, batch: Batch, devices: Array) -> pa.RecordBatch | None:
    points = batch.points
    # A block's bytes are zero where the log knew it; a segment's never are.
    is_older = ~points.is_event & ~points.is_counters & ~points.is_peaks & ~points.unplaced
    at = np.flatnonzero(is_older & (points.action == Action.SEGMENT_ALLOC))
    if not len(at):
        return None
    columns = whose.of_device(points.device[at], devices) | {
        "seq": ints(points.seq[at]),
        "address": ints(points.address[at]),
        "size_bytes": ints(points.size[at]),
        "stream": ints(points.stream[at]),
        "pool": pool_names(points.pool[at]),
    }
    return record_batch("older_segment", columns, len(at))


def _gaps(whose: RankColumns, batch: Batch) -> pa.RecordBatch | None:
    noticed_ns = int(batch.time_ns[-1]) if len(batch.time_ns) else None
    rows: list[dict[str, Any]] = [
        {
            "sequence_first": gap.sequence_first,
            "sequence_last": gap.sequence_last,
            "records": gap.sequence_last - gap.sequence_first + 1,
            "why": gap.why,
            "noticed_ns": noticed_ns,
        }
        for gap in batch.gaps
    ]
    rows += [*_losses(whose, batch), *_offs(whose, batch)]
    return _rows_of_rank(whose, "gap", rows)


def _losses(whose: RankColumns, batch: Batch) -> list[dict[str, Any]]:
    """Gaps of the source: they lie just before their LOST record, whose position they have."""
    losses = named(batch.records[batch.losses], Kind.LOST)
    return [
        {
            "sequence_first": int(batch.seq[place]),
            "sequence_last": int(batch.seq[place]),
            "records": int(number),
            "why": whose.strings.name(int(loss["why"])),
            "noticed_ns": int(batch.time_ns[place]),
        }
        for place, loss, number in zip(batch.losses, losses, num_lost(losses), strict=True)
    ]


def _offs(whose: RankColumns, batch: Batch) -> list[dict[str, Any]]:
    """What is missing from a record on to the process's end; how much it is, is not known."""
    text = whose.strings.text
    offs = named(batch.records[batch.offs], Kind.OFF)
    return [
        {
            "sequence_first": int(batch.seq[place]),
            "sequence_last": int(batch.seq[place]),
            "records": 0,
            "why": whose.strings.name(int(off["why"])),
            "noticed_ns": int(batch.time_ns[place]),
            "what": text(int(off["what"])) if off["what"] else None,
            "detail": text(int(off["detail"])) if off["detail"] else None,
            "to_end": True,
        }
        for place, off in zip(batch.offs, offs, strict=True)
    ]


_DETAILS: Final[dict[int, str]] = dict(zip(RECORDED_DETAILS, ("summary", "full", "steady"), strict=True))


def _control_changes(whose: RankColumns, batch: Batch) -> pa.RecordBatch | None:
    at = np.flatnonzero(batch.records["kind"] == Kind.DETAIL)
    rows = [
        {
            "order_id": int(change["order"]),
            "outcome": Outcome(change["outcome"]).name.lower(),
            "detail": _DETAILS[int(change["detail"])],
            "step": int(change["step"]),
            "time_ns": int(batch.time_ns[place]),
            "seq": int(batch.seq[place]),
        }
        for place, change in zip(at, named(batch.records[at], Kind.DETAIL), strict=True)
    ]
    return _rows_of_rank(whose, "control_change", rows)


def _modules(whose: RankColumns, modules: Array) -> pa.RecordBatch | None:
    rows = {
        whose.strings.name(int(module["path"])): whose.strings.name(int(module["class_name"]))
        for module in modules
    }
    return _rows_of_rank(whose, "module", [{"module": path, "class": name} for path, name in rows.items()])


def _weights(whose: RankColumns, stacks: Stacks, weights: Array) -> pa.RecordBatch | None:
    return _rows_of_rank(
        whose, "weight", weight_rows(weights, whose.strings, stacks.hashes(weights["stack"]))
    )


def _rows_of_rank(whose: RankColumns, table: str, rows: list[dict[str, Any]]) -> pa.RecordBatch | None:
    rank = {"session_id": whose.session_id, "attempt": whose.attempt, "rank": whose.rank}
    return rows_of(table, [rank | row for row in rows]) if rows else None
