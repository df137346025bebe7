"""Rows of our tables out of an Ascend recording's log.

Stage: readers; the process of ``rankmem import``. In: slices of the log, blocks, samples; out: batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_agent.spool.layout import DeviceType
from rankmem_imports.ascend.log import ACTIONS, LogSlice
from rankmem_imports.ascend.rows import UNKNOWN, Vocabulary
from rankmem_imports.ascend.stage import component_of
from rankmem_imports.recording import Identity
from rankmem_ship.pairing.buckets import buckets_of
from rankmem_ship.pairing.columns import coded_names, constant_name, flags, ints, known, record_batch, smalls
from rankmem_ship.pairing.fact_rows import Rows
from rankmem_ship.pairing.points import Totals
from rankmem_ship.pairing.state import ABSENT, DEVICE_DTYPE, Array

_TIMES_OF_BLOCKS: Final = (
    "step", "allocated_ns", "free_requested_ns", "free_requested_seq", "freed_ns", "freed_seq"
)  # fmt: skip
_NPU: Final = DeviceType.PRIVATEUSE1 << 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendTables:
    """Makes the rows of one rank."""

    identity: Identity
    names: Vocabulary
    has_active: bool = True
    """Whether active bytes are known."""

    def events(self, log_slice: LogSlice) -> list[Rows]:
        """memory_event and memory_bucket."""
        length = len(log_slice.seq)
        if not length:
            return []
        allocated, reserved, active, held = log_slice.totals.T
        columns = self.of_device(log_slice.device) | {
            "seq": ints(log_slice.seq),
            "time_ns": ints(log_slice.time_ns),
            "action": coded_names(log_slice.action, ACTIONS),
            "size_bytes": stated(log_slice.size),
            "stream": stated(log_slice.stream),
            "component": self._components(log_slice.component),
            "requested_bytes": ints(held),
            "allocated_bytes": ints(allocated),
            "active_bytes": ints(active) if self.has_active else pa.nulls(length, pa.int64()),
            "reserved_bytes": ints(reserved),
            "allocation_id": ints(log_slice.block, null=~log_slice.has_block),
        }
        return [("memory_event", record_batch("memory_event", columns, length)), self._buckets(log_slice)]

    def blocks(self, rows: dict[str, Array], texts: Sequence[str]) -> Rows:
        """allocation_record.

        Args:
            rows: its columns; component, device and operator as numbers, UNKNOWN where not known.
            texts: of the operators.
        """
        length = len(rows["allocation_id"])
        columns = self.of_device(rows["device"]) | {
            "allocation_id": ints(rows["allocation_id"]),
            "size_bytes": ints(rows["size"]),
            "stream": stated(rows["stream"]),
            "component": self._components(rows["component"]),
            "preexisting": flags(rows["is_older"]),
            "operator": coded_names(rows["operator"].astype(np.int64), texts or [""]),
        }
        for name in _TIMES_OF_BLOCKS:
            columns[name] = stated(rows[name]) if name in rows else pa.nulls(length, pa.int64())
        return "allocation_record", record_batch("allocation_record", columns, length)

    def samples(self, samples: Array, seq: Array) -> Rows:
        """process_sample."""
        columns = self.of_device(samples["device"]) | {
            "time_ns": ints(samples["time_ns"]),
            "seq": ints(seq),
            "app_reserved_bytes": stated(samples["app"]),
            "device_used_bytes": stated(samples["used"]),
        }
        return "process_sample", record_batch("process_sample", columns, len(samples))

    def modules(self, modules: Array) -> Rows:
        """component_sample."""
        columns = self.of_device(modules["device"]) | {
            "time_ns": ints(modules["time_ns"]),
            "component": coded_names(modules["component"].astype(np.int64), self.names.components.texts),
            "reserved_bytes": stated(modules["reserved"]),
        }
        return "component_sample", record_batch("component_sample", columns, len(modules))

    def static_blocks(self, blocks: Array) -> Rows:
        """static_block."""
        texts = self.names.texts.texts
        columns = self.of_device(blocks["device"]) | {
            "graph_id": coded_names(blocks["graph"].astype(np.int64), texts),
            "model": coded_names(blocks["model"].astype(np.int64), texts),
            "operator": coded_names(blocks["name"].astype(np.int64), texts),
            "node_first": stated(blocks["first"]),
            "node_last": stated(blocks["last"]),
            "size_bytes": stated(blocks["size"]),
        }
        return "static_block", record_batch("static_block", columns, len(blocks))

    def facts(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of a small table, made this rank's."""
        return [self.identity._asdict() | row for row in rows]

    def of_device(self, numbers: Array) -> dict[str, pa.Array]:
        """The columns of rank and device."""
        length = len(numbers)
        return {
            "session_id": constant_name(self.identity.session_id, length),
            "attempt": smalls(np.full(length, self.identity.attempt, np.int32)),
            "rank": smalls(np.full(length, self.identity.rank, np.int32)),
            "device": coded_names(numbers.astype(np.int64), self.names.devices.texts),
        }

    def _components(self, numbers: Array) -> pa.Array:
        ours = [component_of(text) for text in self.names.components.texts]
        distinct = sorted(set(ours))
        places = np.array([distinct.index(name) for name in ours], np.int64)
        return coded_names(places[numbers], distinct)

    def _buckets(self, log_slice: LogSlice) -> Rows:
        devices = np.zeros(len(self.names.devices.texts), DEVICE_DTYPE)
        devices["code"] = _NPU + np.arange(len(devices))
        found = buckets_of(log_slice, _totals(log_slice, has_active=self.has_active), devices)
        columns = {name: known(values) for name, values in found.items() if name != "device"}
        length = len(found["device"])
        return "memory_bucket", record_batch(
            "memory_bucket", columns | self.of_device(found["device"]), length
        )


def stated(values: Array) -> pa.Array:
    """An int64 column; NULL where UNKNOWN."""
    return ints(values, null=values == UNKNOWN)


def _totals(log_slice: LogSlice, *, has_active: bool) -> Totals:
    allocated, reserved, active, held = log_slice.totals.T
    never = np.full(len(held), ABSENT)
    active = active if has_active else never
    return Totals(
        requested=held,
        reserved=reserved,
        allocated=allocated,
        active=active,
        allocated_risen=never,
        active_risen=never,
    )
