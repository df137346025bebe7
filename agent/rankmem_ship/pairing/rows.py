"""A batch's facts as rows: events, allocations, calls, and through fact_rows the smaller tables.

Stage: pairing; shipper process. In: rankmem_ship.pairing.batch.Batch. Out: record batches with exactly
the schemas of rankmem_protos.tables. It decides nothing: what is due was decided before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_agent.spool.layout import Action, DeviceType, Phase
from rankmem_protos.categories import CATEGORY_NAMES
from rankmem_protos.tables import BUCKET_RECORDS
from rankmem_ship.pairing.batch import Batch
from rankmem_ship.pairing.block_table import older_block_bytes
from rankmem_ship.pairing.buckets import buckets_of
from rankmem_ship.pairing.categories import Resolved
from rankmem_ship.pairing.columns import (
    coded_names,
    constant_name,
    dense_codes,
    flags,
    ints,
    known,
    null_names,
    nulls,
    record_batch,
    smalls,
    string_names,
)
from rankmem_ship.pairing.fact_rows import Rows, fact_rows
from rankmem_ship.pairing.rank_columns import RankColumns, are_on_host, pool_names
from rankmem_ship.pairing.stacks import Stacks
from rankmem_ship.pairing.state import ABSENT, Array, Known, indices, rows_at

__all__ = ["RowMaker", "Rows"]

ACTIONS: Final = tuple(action.name.lower() for action in Action)
PHASES: Final = tuple(phase.name.lower() for phase in Phase)
ATTRIBUTIONS: Final = tuple(
    known.name.lower() for known in Known if known not in (Known.AS_GIVEN, Known.WAITS)
)
COMPONENTS: Final = ("pytorch", "cuda_graph", "mem_pool", "pinned_host")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMaker:
    """Makes the rows of one rank."""

    whose: RankColumns
    stacks: Stacks
    bucket_records: int = BUCKET_RECORDS
    """Positions of the log in a row of memory_bucket."""
    observes: bool | None = True
    """Whether the process was started to observe operators at all; None for a foreign recording, in which
    all is as in the source."""

    def rows(self, batch: Batch, resolved: Resolved, devices: Array) -> list[Rows]:
        """All rows of the batch, tables without a row left out. ``devices``: as they stand after it."""
        made = [
            ("memory_event", self._memory_events(batch, devices)),
            ("allocation_record", self._allocation_records(batch, resolved.initial, devices)),
            ("allocation_end", self._allocation_ends(batch.ends_due, devices)),
            ("category_change", self._category_changes(resolved.changes, devices)),
            ("operator_call", self._operator_calls(batch)),
            ("memory_bucket", self._memory_buckets(batch, devices)),
            *fact_rows(self.whose, self.stacks, batch, devices),
        ]
        return [(table, rows) for table, rows in made if rows is not None and rows.num_rows]

    def _memory_events(self, batch: Batch, devices: Array) -> pa.RecordBatch | None:
        points, totals = batch.points, batch.totals
        if not points.is_event.any():
            return None
        at = slice(None) if points.is_event.all() else np.flatnonzero(points.is_event)
        numbers, block = points.device[at], points.block[at]
        has_block = block != ABSENT
        size, pool, stream = points.size[at], points.pool[at], points.stream[at]
        allocation_id = np.full(len(block), ABSENT)
        if len(batch.blocks):
            size = np.where(has_block, batch.blocks["size"][block], size)
            allocation_id = np.where(has_block, batch.blocks["allocation_id"][block], allocation_id)
            if batch.blocks["pool"].any() or pool.any():
                pool = np.where(has_block, batch.blocks["pool"][block], pool)
            if batch.blocks["stream"].any() or stream.any():
                stream = np.where(has_block, batch.blocks["stream"][block], stream)
        pool = np.where(points.action[at] == Action.OOM, 0, pool)  # an oom's d is the free bytes
        on_host = are_on_host(devices)[numbers]
        call_id = points.call_id[at]
        columns = self.whose.of_device(numbers, devices) | {
            "seq": ints(points.seq[at]),
            "time_ns": ints(points.time_ns[at]),
            "action": coded_names(points.action[at], ACTIONS),
            "address": known(points.address[at]),
            "size_bytes": ints(size),
            "stream": _off_host(stream, on_host),
            **_pool_and_component(pool, devices["code"][numbers]),
            "requested_bytes": ints(totals.requested[at]),
            "allocated_bytes": _off_host(totals.allocated[at], on_host, totals.allocated[at] == ABSENT),
            "active_bytes": _off_host(totals.active[at], on_host, totals.active[at] == ABSENT),
            "reserved_bytes": _off_host(totals.reserved[at], on_host),
            "allocation_id": ints(allocation_id, null=~has_block),
            "call_id": ints(call_id, null=call_id == 0),
            "thread": smalls(points.thread[at]),
            "stack_id": self._stack_ids(np.where(points.action[at] == Action.ALLOC, 0, points.stack[at])),
        }
        return record_batch("memory_event", columns, len(block))

    def _allocation_records(self, batch: Batch, categories: Array, devices: Array) -> pa.RecordBatch | None:
        blocks = batch.records_due
        if not len(blocks):
            return None
        numbers, strings = blocks["device"], self.whose.strings
        forward = blocks["forward_call_id"]
        columns = self.whose.of_device(numbers, devices) | {
            "allocation_id": ints(blocks["allocation_id"]),
            "address": ints(blocks["address"]),
            "size_bytes": ints(blocks["size"]),
            "stream": ints(blocks["stream"], null=are_on_host(devices)[numbers]),
            **_pool_and_component(blocks["pool"], devices["code"][numbers]),
            "category": coded_names(categories.astype(np.int64), CATEGORY_NAMES),
            "operator": self._names_or(batch, "operator"),
            "module": self._names_or(batch, "module"),
            "phase": coded_names(blocks["phase"], PHASES),
            "step": known(blocks["step"]),
            "call_id": ints(blocks["call_id"], null=blocks["call_id"] == 0),
            "stack_id": self._stack_ids(blocks["stack"]),
            "allocated_ns": known(blocks["allocated_ns"]),
            **_frees(blocks),
            "preexisting": flags(blocks["preexisting"]),
            "annotation": string_names(blocks["annotation"], strings),
            "forward_call_id": ints(forward, null=forward == 0),
            "forward_stack_id": self._stack_ids(blocks["forward_stack"]),
            "recomputed": flags(blocks["recomputed"]),
            "block_bytes": older_block_bytes(blocks, batch.records, devices),
            "attribution": self._attributions(blocks["by"]),
            "like_id": known(blocks["like"]),
        }
        return record_batch("allocation_record", columns, len(blocks))

    def _names_or(self, batch: Batch, column: str) -> pa.Array:
        """Operators or modules of the blocks whose rows go out; "a or b" where both were seen in their
        place."""
        blocks, strings = batch.records_due, self.whose.strings
        doubts = rows_at(batch.templates, batch.templates[f"other_{column}"] != 0)
        place = indices(blocks["like"], doubts["allocation_id"])
        if not (place != ABSENT).any():
            return string_names(blocks[column], strings)
        used, codes = dense_codes(blocks[column])
        texts = [strings.name(int(each)) for each in used]
        codes = np.where(blocks[column] == 0, ABSENT, codes)
        for at in np.unique(place[place != ABSENT]):
            both = sorted(
                strings.name(int(doubts[name][at])) or "none" for name in (column, f"other_{column}")
            )
            codes[place == at] = len(texts)
            texts.append(" or ".join(both))
        return coded_names(codes, texts)

    def _attributions(self, by: Array) -> pa.Array:
        if self.observes is None:
            return null_names(len(by))
        if not self.observes:
            by = np.where(by == Known.OBSERVED, Known.NONE, by)
        return coded_names(by.astype(np.int64) - 1, ATTRIBUTIONS)

    def _allocation_ends(self, blocks: Array, devices: Array) -> pa.RecordBatch | None:
        if not len(blocks):
            return None
        columns = self.whose.of_device(blocks["device"], devices)
        columns |= {"allocation_id": ints(blocks["allocation_id"]), **_frees(blocks)}
        return record_batch("allocation_end", columns, len(blocks))

    def _category_changes(self, changes: Array, devices: Array) -> pa.RecordBatch | None:
        if not len(changes):
            return None
        columns = self.whose.of_device(changes["device"], devices) | {
            "allocation_id": ints(changes["allocation_id"]),
            "time_ns": ints(changes["time_ns"]),
            "seq": ints(changes["seq"]),
            "category": coded_names(changes["category"].astype(np.int64), CATEGORY_NAMES),
        }
        return record_batch("category_change", columns, len(changes))

    def _operator_calls(self, batch: Batch) -> pa.RecordBatch | None:
        due = batch.calls_due
        if not len(due):
            return None
        table, calls = rows_at(batch.calls.table, due), batch.calls
        attribution, strings = batch.attribution, self.whose.strings
        forward = attribution.forward_call_id[due]
        no_forward = table["forward_thread"] == ABSENT
        columns = self.whose.of_rank(len(due)) | {
            "call_id": ints(table["call_id"]),
            "operator": self.whose.required_names(table["operator"]),
            "module": string_names(attribution.module[due], strings),
            "phase": coded_names(table["phase"], PHASES),
            "step": known(table["step"]),
            "thread": smalls(table["thread"]),
            "sequence_first": known(calls.sequence_first[due]),
            "sequence_last": known(calls.sequence_last[due]),
            "forward_thread": smalls(table["forward_thread"], null=no_forward),
            "forward_sequence": ints(table["forward_sequence"], null=no_forward),
            "forward_call_id": ints(forward, null=forward == 0),
            "stack_id": self._stack_ids(calls.stack[due]),
            "started_ns": ints(table["started"]),
            "ended_ns": ints(calls.ended_ns[due], null=~calls.ended[due]),
            "allocated_bytes": ints(table["allocated_bytes"]),
            "freed_bytes": ints(table["freed_bytes"]),
            "allocations": ints(table["allocations"]),
            "annotation": string_names(attribution.annotation[due], strings),
            "forward_stack_id": self._stack_ids(attribution.forward_stack[due]),
            "recomputed": flags(attribution.recomputed[due]),
        }
        return record_batch("operator_call", columns, len(due))

    def _memory_buckets(self, batch: Batch, devices: Array) -> pa.RecordBatch | None:
        buckets = buckets_of(batch.points, batch.totals, devices, self.bucket_records)
        if not buckets:
            return None
        columns = {name: known(values) for name, values in buckets.items() if name != "device"}
        columns |= self.whose.of_device(buckets["device"], devices)
        return record_batch("memory_bucket", columns, len(buckets["device"]))

    def _stack_ids(self, stacks: Array) -> pa.Array:
        """Content hashes of string-table stack ids; NULL where 0."""
        if not stacks.any():
            return nulls(len(stacks), pa.int64())
        return ints(self.stacks.hashes(stacks), null=stacks == 0)


def _off_host(values: Array, on_host: Array, unknown: Array | None = None) -> pa.Array:
    """A figure that host memory does not have; NULL there, and where not known."""
    if on_host.all():
        return nulls(len(values), pa.int64())
    return ints(values, null=on_host if unknown is None else on_host | unknown)


def _frees(blocks: Array) -> dict[str, pa.Array]:
    return {
        name: known(blocks[name])
        for name in ("free_requested_ns", "free_requested_seq", "freed_ns", "freed_seq")
    }


def _pool_and_component(pool: Array, codes: Array) -> dict[str, pa.Array]:
    """Columns pool and component from pool ids (first << 32 | second) and device codes."""
    pinned = codes >> 8 == DeviceType.PINNED
    if not pool.any() and not pinned.any():
        return {
            "pool": null_names(len(pool)),
            "component": constant_name(COMPONENTS[0], len(pool)),
        }
    component = np.where(pool >> np.uint64(32) != 0, 1, np.where(pool != 0, 2, 0))
    return {
        "pool": pool_names(pool),
        "component": coded_names(np.where(pinned, 3, component), COMPONENTS),
    }
