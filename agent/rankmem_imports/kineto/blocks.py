"""Blocks for the events of a Kineto trace that have no address.

Stage: readers, part of ``log``; the process of ``rankmem import``. In: the events in the order of time;
out: a stand-in address for each event without one, so that pairing makes blocks of them; and the way back,
for no row shows a stand-in. A free ends a block of its size: how many of each size are alive is certain,
which of several is not. A free of a size of which none is alive ends a block that is older than the trace.
Blocks whose end is a choice among several have no operator.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_imports.kineto.scan import UNKNOWN
from rankmem_imports.replay import with_column
from rankmem_ship.pairing.state import Array

FIRST: Final = -2
"""Stand-in addresses run down from here: the top of the address space, where no allocator has a block."""
_OF_THE_CALL: Final = (
    "operator",
    "module",
    "phase",
    "step",
    "annotation",
    "call_id",
    "stack_id",
    "forward_call_id",
    "forward_stack_id",
    "recomputed",
)
_WITH_ADDRESS: Final = ("memory_event", "allocation_record")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """The addresses in place of those that a trace lacks."""

    next: int = FIRST
    """The first that is free; those in use are the ones between it and FIRST, FIRST included."""
    ambiguous: frozenset[int] = frozenset()
    """Of blocks that may be others of their size."""

    def __len__(self) -> int:
        return FIRST - self.next

    def without(self, table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a table with NULL for each stand-in, and for unknown columns of its block."""
        if not len(self) or table not in _WITH_ADDRESS:
            return rows
        address = rows.column("address").fill_null(0).to_numpy(zero_copy_only=False)
        rows = _blanked(rows, "address", (address <= FIRST) & (address > self.next))
        if table == "allocation_record" and self.ambiguous:
            ambiguous = np.isin(address, np.fromiter(self.ambiguous, np.int64))
            for name in _OF_THE_CALL:
                rows = _blanked(rows, name, ambiguous)
        return rows


def with_addresses(device: Array, size: Array, is_alloc: Array, address: Array) -> tuple[Array, StandIns]:
    """The addresses, with stand-ins where the trace has none.

    Args:
        device, size, is_alloc, address: of each event, in the order of time; ``address`` UNKNOWN where the
            trace lacks it.
    """
    at = np.flatnonzero(address == UNKNOWN)
    if not len(at):
        return address, StandIns()
    given = address.copy()
    alive: dict[tuple[int, int], list[int]] = defaultdict(list)
    ambiguous: set[int] = set()
    free_address = FIRST
    events = zip(at.tolist(), device[at].tolist(), size[at].tolist(), is_alloc[at].tolist(), strict=True)
    for place, of_device, of_size, begins in events:
        of_kind = alive[of_device, of_size]
        if not begins and of_kind:
            if len(of_kind) > 1:
                ambiguous.update(of_kind)
            given[place] = of_kind.pop()
            continue
        given[place] = free_address
        if begins:
            of_kind.append(free_address)
        free_address -= 1
    return given, StandIns(next=free_address, ambiguous=frozenset(ambiguous))


def _blanked(rows: pa.RecordBatch, name: str, blank: Array) -> pa.RecordBatch:
    """The rows with NULL in a column where ``blank`` is true."""
    if not blank.any():
        return rows
    column = rows.column(name)
    if isinstance(column, pa.DictionaryArray):
        indices = pc.if_else(pa.array(blank), None, column.indices)
        return with_column(rows, name, pa.DictionaryArray.from_arrays(indices, column.dictionary))
    return with_column(rows, name, pc.if_else(pa.array(blank), None, column))
