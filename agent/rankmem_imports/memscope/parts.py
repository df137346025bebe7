"""Parts of an msMemScope dump as they are stored: with components for pools, and samples of other components.

Stage: readers, after the replay; the process of ``rankmem import``. In: parts of a replay, in which a
pool's number stands for a component; out: the same with components. What pools reserved is NULL on devices
where no row shows it; what the driver gave to libraries is added as rows of component_sample, and when
blocks were used as rows of allocation_use.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_agent.spool.layout import DeviceType
from rankmem_imports.memscope.before import Before
from rankmem_imports.memscope.uses import Uses
from rankmem_imports.recording import Identity, Part
from rankmem_imports.replay import RESERVED, with_column
from rankmem_ship.pairing.columns import coded_names, null_names, rows_of
from rankmem_ship.pairing.devices import device_name
from rankmem_ship.pairing.fact_rows import Rows

PINNED_HOST: Final = "pinned_host"
SAMPLES: Final = "component_sample"
USES: Final = "allocation_use"
_Device = tuple[int, int]
_WITH_COMPONENT: Final = ("memory_event", "allocation_record")


class MemScopeParts:
    """Completes the parts of one process."""

    def __init__(self, identity: Identity, before: Before, uses: Uses) -> None:
        self._identity = identity
        self._before = before
        self._uses = uses
        self._components = ["pytorch", PINNED_HOST]
        self._devices: set[_Device] = set()
        self._held: dict[tuple[_Device, str], int] = defaultdict(int)
        self._samples: list[dict[str, Any]] = []
        self.sampled: dict[str, int] = {}
        """Rows of the driver's that are samples, by component."""

    def number(self, component: str) -> int:
        """The number of the pool that stands for a component."""
        if component not in self._components:
            self._components.append(component)
        return self._components.index(component)

    def sample(self, time_ns: int, device: _Device, component: str, change: int) -> None:
        """Records that the driver gave a component memory, or took it back."""
        self._held[device, component] += change
        self.sampled[component] = self.sampled.get(component, 0) + 1
        self._samples.append(
            self._identity._asdict()
            | {
                "device": device_name(device[0] << 8 | device[1]),
                "time_ns": time_ns,
                "component": component,
                "reserved_bytes": self._held[device, component],
            }
        )

    def named(self, part: Part, *, final: bool = False) -> Part:
        """The part as it is stored. A pool's reserved bytes are not a segment with an address."""
        rows = [(table, self._named(table, batch)) for table, batch in part.rows if table != "older_segment"]
        uses = [self._identity._asdict() | use for use in self._uses.rows(final=final)]
        used = [(USES, rows_of(USES, uses))] if uses else []
        return part._replace(rows=[*self._with_samples(rows), *used])

    def _with_samples(self, rows: list[Rows]) -> list[Rows]:
        if not self._samples:
            return rows
        taken, self._samples = rows_of(SAMPLES, self._samples), []
        others = [pair for pair in rows if pair[0] != SAMPLES]
        both = [batch for table, batch in rows if table == SAMPLES] + [taken]
        return [*others, (SAMPLES, pa.concat_batches(both))]

    def _named(self, table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        if table in _WITH_COMPONENT:
            rows = self._with_component(rows)
        if RESERVED & set(rows.schema.names):
            rows = self._without_unknown(rows)
        return rows

    def _with_component(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        pools = rows.column("pool")
        host = np.array([device == "pinned" for device in rows.column("device").to_pylist()])
        codes = np.array([0 if pool is None else int(pool.rpartition(".")[2]) for pool in pools.to_pylist()])
        codes = np.where(host, self._components.index(PINNED_HOST), codes)
        address = rows.column("address")
        is_made_up = pc.less(address, 0)  # of the rest of a pool
        rows = with_column(rows, "address", pc.if_else(is_made_up, pa.scalar(None, pa.int64()), address))
        rows = with_column(rows, "component", coded_names(codes, self._components))
        return with_column(rows, "pool", null_names(rows.num_rows))

    def _without_unknown(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with NULL for reserved bytes that are unknown."""
        names = rows.column("device").to_pylist()
        unknown = {name for name in set(names) if not self._knows_reserved(name)}
        if not unknown:
            return rows
        is_unknown = pa.array([name in unknown for name in names])
        for name in RESERVED & set(rows.schema.names):
            column = rows.column(name)
            rows = with_column(rows, name, pc.if_else(is_unknown, pa.scalar(None, column.type), column))
        return rows

    def _knows_reserved(self, name: str) -> bool:
        kind, _, index = name.partition(":")
        return kind != "npu" or self._before.knows_reserved((DeviceType.NPU, int(index)))
