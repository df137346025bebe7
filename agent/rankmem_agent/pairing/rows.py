"""A batch's facts as rows: events, allocations, calls and the smaller tables, as Arrow record batches.

Stage: pairing; shipper process. In: rankmem_agent.pairing.batch.Batch. Out: record batches with exactly
the schemas of rankmem_protos.tables. It decides nothing: what is due was decided before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_agent.pairing.batch import Batch
from rankmem_agent.pairing.buckets import buckets_of
from rankmem_agent.pairing.columns import (
    coded_names,
    constant_name,
    dense_codes,
    flags,
    ints,
    known,
    record_batch,
    rows_of,
    smalls,
    string_names,
)
from rankmem_agent.pairing.devices import dense_numbers, device_codes, device_name, is_host_memory
from rankmem_agent.pairing.stacks import Stacks
from rankmem_agent.pairing.state import ABSENT, Array, rows_at
from rankmem_agent.spool.layout import UNKNOWN, Action, DeviceType, Kind, MarkerKind, Phase
from rankmem_agent.spool.string_table import StringTable

ACTIONS: Final = tuple(action.name.lower() for action in Action)
PHASES: Final = tuple(phase.name.lower() for phase in Phase)
MARKER_KINDS: Final = tuple(kind.name.lower() for kind in MarkerKind)
COMPONENTS: Final = ("pytorch", "cuda_graph", "mem_pool", "pinned_host")

Rows = tuple[str, pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMaker:
    """Makes the rows of one rank."""

    session_id: str
    attempt: int
    rank: int
    strings: StringTable
    stacks: Stacks

    def rows(self, batch: Batch, devices: Array) -> list[Rows]:
        """All rows of the batch, tables without a row left out. ``devices``: as they stand after it."""
        made = [
            ("memory_event", self._memory_events(batch, devices)),
            ("allocation_record", self._allocation_records(batch.records_due, devices)),
            ("allocation_end", self._allocation_ends(batch.ends_due, devices)),
            ("operator_call", self._operator_calls(batch)),
            ("memory_bucket", self._memory_buckets(batch, devices)),
            ("marker", self._markers(batch)),
            ("step", self._steps(batch)),
            ("process_sample", self._process_samples(batch, devices)),
            ("oom", self._ooms(batch, devices)),
            ("gap", self._gaps(batch)),
        ]
        return [(table, rows) for table, rows in made if rows is not None and rows.num_rows]

    def _of_rank(self, length: int) -> dict[str, pa.Array]:
        return {
            "session_id": constant_name(self.session_id, length),
            "attempt": smalls(np.full(length, self.attempt)),
            "rank": smalls(np.full(length, self.rank)),
        }

    def _of_device(self, numbers: Array, devices: Array) -> dict[str, pa.Array]:
        names = [device_name(int(code)) for code in devices["code"]]
        return self._of_rank(len(numbers)) | {"device": coded_names(numbers, names)}

    def _memory_events(self, batch: Batch, devices: Array) -> pa.RecordBatch | None:
        points, totals = batch.points, batch.totals
        at = np.flatnonzero(points.is_event)
        if not len(at):
            return None
        numbers, block = points.device[at], points.block[at]
        has_block = block != ABSENT
        size, pool, stream = points.size[at], points.pool[at], points.stream[at]
        allocation_id = np.full(len(at), ABSENT)
        if len(batch.blocks):
            size = np.where(has_block, batch.blocks["size"][block], size)
            pool = np.where(has_block, batch.blocks["pool"][block], pool)
            stream = np.where(has_block, batch.blocks["stream"][block], stream)
            allocation_id = np.where(has_block, batch.blocks["allocation_id"][block], allocation_id)
        pool = np.where(points.action[at] == Action.OOM, 0, pool)  # an oom's d is the free bytes
        on_host = _on_host(devices)[numbers]
        call_id = points.call_id[at]
        columns = self._of_device(numbers, devices) | {
            "seq": ints(points.seq[at]),
            "time_ns": ints(points.time_ns[at]),
            "action": coded_names(points.action[at], ACTIONS),
            "address": ints(points.address[at]),
            "size_bytes": ints(size),
            "stream": ints(stream, null=on_host),
            **_pool_and_component(pool, devices["code"][numbers]),
            "requested_bytes": ints(totals.requested[at]),
            "allocated_bytes": ints(totals.allocated[at], null=on_host | (totals.allocated[at] == ABSENT)),
            "active_bytes": ints(totals.active[at], null=on_host | (totals.active[at] == ABSENT)),
            "reserved_bytes": ints(totals.reserved[at], null=on_host),
            "allocation_id": ints(allocation_id, null=~has_block),
            "call_id": ints(call_id, null=call_id == 0),
            "thread": smalls(points.thread[at]),
        }
        return record_batch("memory_event", columns, len(at))

    def _allocation_records(self, blocks: Array, devices: Array) -> pa.RecordBatch | None:
        if not len(blocks):
            return None
        numbers = blocks["device"]
        hashes = self.stacks.hashes(blocks["stack"])
        columns = self._of_device(numbers, devices) | {
            "allocation_id": ints(blocks["allocation_id"]),
            "address": ints(blocks["address"]),
            "size_bytes": ints(blocks["size"]),
            "stream": ints(blocks["stream"], null=_on_host(devices)[numbers]),
            **_pool_and_component(blocks["pool"], devices["code"][numbers]),
            "operator": string_names(blocks["operator"], self.strings),
            "module": string_names(blocks["module"], self.strings),
            "phase": coded_names(blocks["phase"], PHASES),
            "step": known(blocks["step"]),
            "call_id": ints(blocks["call_id"], null=blocks["call_id"] == 0),
            "stack_id": ints(hashes, null=blocks["stack"] == 0),
            "allocated_ns": known(blocks["allocated_ns"]),
            **_frees(blocks),
            "preexisting": flags(blocks["preexisting"]),
        }
        return record_batch("allocation_record", columns, len(blocks))

    def _allocation_ends(self, blocks: Array, devices: Array) -> pa.RecordBatch | None:
        if not len(blocks):
            return None
        columns = self._of_device(blocks["device"], devices)
        columns |= {"allocation_id": ints(blocks["allocation_id"]), **_frees(blocks)}
        return record_batch("allocation_end", columns, len(blocks))

    def _operator_calls(self, batch: Batch) -> pa.RecordBatch | None:
        due = batch.calls_due
        if not len(due):
            return None
        table, calls = rows_at(batch.calls.table, due), batch.calls
        stack, forward = calls.stack[due], batch.forward_call_id[due]
        no_forward = table["forward_thread"] == ABSENT
        columns = self._of_rank(len(due)) | {
            "call_id": ints(table["call_id"]),
            "operator": self._required_names(table["operator"]),
            "module": string_names(table["module"], self.strings),
            "phase": coded_names(table["phase"], PHASES),
            "step": known(table["step"]),
            "thread": smalls(table["thread"]),
            "sequence_first": known(calls.sequence_first[due]),
            "sequence_last": known(calls.sequence_last[due]),
            "forward_thread": smalls(table["forward_thread"], null=no_forward),
            "forward_sequence": ints(table["forward_sequence"], null=no_forward),
            "forward_call_id": ints(forward, null=forward == 0),
            "stack_id": ints(self.stacks.hashes(stack), null=stack == 0),
            "started_ns": ints(table["started"]),
            "ended_ns": ints(calls.ended_ns[due], null=~calls.ended[due]),
            "allocated_bytes": ints(table["allocated_bytes"]),
            "freed_bytes": ints(table["freed_bytes"]),
            "allocations": ints(table["allocations"]),
        }
        return record_batch("operator_call", columns, len(due))

    def _memory_buckets(self, batch: Batch, devices: Array) -> pa.RecordBatch | None:
        buckets = buckets_of(batch.points, batch.totals, devices)
        if not buckets:
            return None
        columns = {name: known(values) for name, values in buckets.items() if name != "device"}
        columns |= self._of_device(buckets["device"], devices)
        return record_batch("memory_bucket", columns, len(buckets["device"]))

    def _markers(self, batch: Batch) -> pa.RecordBatch | None:
        ended_ns = batch.markers.ended_ns
        due = np.arange(len(ended_ns)) if batch.final else np.flatnonzero(ended_ns != ABSENT)
        if not len(due):
            return None
        table = batch.markers.table[due]
        columns = self._of_rank(len(due)) | {
            "marker_id": ints(table["marker_id"]),
            "name": self._required_names(table["name"]),
            "kind": coded_names(table["kind"].astype(np.int64), MARKER_KINDS),
            "depth": smalls(table["depth"]),
            "thread": smalls(table["thread"]),
            "started_ns": ints(table["started_ns"]),
            "ended_ns": known(ended_ns[due]),
        }
        return record_batch("marker", columns, len(due))

    def _steps(self, batch: Batch) -> pa.RecordBatch | None:
        at = np.flatnonzero(batch.records["kind"] == Kind.STEP)
        if not len(at):
            return None
        rows = batch.records[at]
        columns = self._of_rank(len(at)) | {
            "step": ints(rows["a"]),
            "ended_ns": ints(batch.time_ns[at]),
            "seq": ints(batch.seq[at]),
            "optimizer": string_names(rows["e"], self.strings),
        }
        return record_batch("step", columns, len(at))

    def _process_samples(self, batch: Batch, devices: Array) -> pa.RecordBatch | None:
        at = np.flatnonzero(batch.records["kind"] == Kind.SAMPLE)
        if not len(at):
            return None
        rows = batch.records[at]
        figures = {
            name: ints(rows[field].astype(np.int64), null=rows[field] == UNKNOWN)
            for name, field in (
                ("app_reserved_bytes", "a"),
                ("device_used_bytes", "b"),
                ("device_free_bytes", "c"),
                ("device_total_bytes", "d"),
            )
        }
        columns = self._of_device(dense_numbers(devices, device_codes(rows)), devices) | figures
        columns |= {"time_ns": ints(batch.time_ns[at]), "seq": ints(batch.seq[at])}
        return record_batch("process_sample", columns, len(at))

    def _ooms(self, batch: Batch, devices: Array) -> pa.RecordBatch | None:
        points, totals = batch.points, batch.totals
        at = np.flatnonzero(points.is_event & (points.action == Action.OOM))
        if not len(at):
            return None
        numbers, call_id = points.device[at], points.call_id[at]
        on_host = _on_host(devices)[numbers]
        place = batch.calls.place(call_id.astype(np.uint64))
        operator = batch.calls.table["operator"][np.maximum(place, 0)] if len(batch.calls.table) else place
        columns = self._of_device(numbers, devices) | {
            "seq": ints(points.seq[at]),
            "time_ns": ints(points.time_ns[at]),
            "size_bytes": ints(points.size[at]),
            "device_free_bytes": ints(points.pool[at].astype(np.int64), null=points.pool[at] == UNKNOWN),
            "requested_bytes": ints(totals.requested[at]),
            "reserved_bytes": ints(totals.reserved[at], null=on_host),
            "stream": ints(points.stream[at], null=on_host),
            "call_id": ints(call_id, null=call_id == 0),
            "operator": string_names(np.where(place == ABSENT, 0, operator), self.strings),
        }
        return record_batch("oom", columns, len(at))

    def _gaps(self, batch: Batch) -> pa.RecordBatch | None:
        noticed_ns = int(batch.time_ns[-1]) if len(batch.time_ns) else None
        rows = [
            {
                "session_id": self.session_id,
                "attempt": self.attempt,
                "rank": self.rank,
                "sequence_first": gap.sequence_first,
                "sequence_last": gap.sequence_last,
                "records": gap.sequence_last - gap.sequence_first + 1,
                "why": gap.why,
                "noticed_ns": noticed_ns,
            }
            for gap in batch.gaps
        ]
        return rows_of("gap", rows) if rows else None

    def _required_names(self, ids: Array) -> pa.Array:
        """Names where NULL is not allowed: id 0 gives the unknown name."""
        used, codes = dense_codes(ids)
        return coded_names(codes, [self.strings.name(int(i)) for i in used] or [""])


def _on_host(devices: Array) -> Array:
    return np.array([is_host_memory(int(code)) for code in devices["code"]], np.bool_)


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
            "pool": coded_names(np.full(len(pool), ABSENT), [""]),
            "component": constant_name(COMPONENTS[0], len(pool)),
        }
    ids, place = np.unique(pool, return_inverse=True)
    texts = [f"{int(i) >> 32}.{int(i) & 0xFFFF_FFFF}" for i in ids]
    component = np.where(pool >> np.uint64(32) != 0, 1, np.where(pool != 0, 2, 0))
    return {
        "pool": coded_names(np.where(pool == 0, ABSENT, place), texts),
        "component": coded_names(np.where(pinned, 3, component), COMPONENTS),
    }
