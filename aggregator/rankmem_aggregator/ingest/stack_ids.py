"""Numbers of stacks: the wire's content hashes become small integers, each stack's frames are stored once.

Stage: ingest, in the writer's thread alone. In: the checked tables of a batch; out: the same tables with the
database's own numbers in every column that names a stack (``stack_id``, ``forward_stack_id``), frames only of
stacks that have none yet, and the new (number, hash) pairs to store with them. Numbers given since the last
commit are released by :meth:`StackNumbers.rollback`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmem_aggregator.store.schema import STACK
from rankmem_protos.tables import STACK_FRAME, TABLES

Int64s = npt.NDArray[np.int64]

STACK_COLUMNS: Final = {
    table.name: tuple(name for name in table.column_names() if name.endswith("stack_id"))
    for table in TABLES.values()
}
"""By table, the columns that carry content hashes on the wire."""


class StackNumbers:
    """Hash to number for every stack of the database, in sorted arrays (16 bytes a stack).

    Args:
        numbers, hashes: the stored pairs, any order.
        framed: numbers whose frames are stored.
    """

    def __init__(self, numbers: Int64s, hashes: Int64s, framed: Int64s) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._numbers = numbers[order]
        self._framed = set(framed.tolist())
        self._next = int(numbers.max()) + 1 if numbers.size else 1
        self._new_hashes: list[Int64s] = []
        self._new_framed: set[int] = set()
        self._committed = (self._hashes, self._numbers, self._next)

    def replace(self, rows: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """The tables with the database's numbers for stacks, without frames of stacks that have them."""
        replaced = {name: self._renumbered(name, table) for name, table in rows.items()}
        frames = replaced.get(STACK_FRAME.name)
        if frames is not None:
            replaced[STACK_FRAME.name] = self._unknown_frames(frames)
        return replaced

    def pending(self) -> pa.Table:
        """The pairs given since the last commit, as rows of the table that keeps them."""
        hashes = np.concatenate(self._new_hashes) if self._new_hashes else np.empty(0, np.int64)
        numbers = np.arange(self._committed[2], self._next, dtype=np.int32)
        return pa.table([numbers, hashes], schema=STACK.arrow_schema())

    def commit(self) -> None:
        """The new numbers are stored."""
        self._framed |= self._new_framed
        self._committed = (self._hashes, self._numbers, self._next)
        self._forget()

    def rollback(self) -> None:
        """The new numbers are not stored: they are free again."""
        self._hashes, self._numbers, self._next = self._committed
        self._forget()

    def _forget(self) -> None:
        self._new_hashes = []
        self._new_framed = set()

    def _renumbered(self, name: str, table: pa.Table) -> pa.Table:
        for column in STACK_COLUMNS[name]:
            place = table.schema.get_field_index(column)
            table = table.set_column(place, table.schema.field(place), self._numbered(table.column(place)))
        return table

    def _numbered(self, hashes: pa.ChunkedArray) -> pa.Array:
        column = hashes.combine_chunks()
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = np.zeros(len(column), dtype=np.int64)
        if valid.any():
            numbers[valid] = self._numbers_of(column.drop_null().to_numpy())
        return pa.array(numbers, mask=None if valid.all() else ~valid)

    def _numbers_of(self, hashes: Int64s) -> Int64s:
        unique, inverse = np.unique(hashes, return_inverse=True)
        self._learn(unique)
        return self._numbers[np.searchsorted(self._hashes, unique)][inverse]

    def _learn(self, unique: Int64s) -> None:
        """Gives the next numbers to hashes not seen before."""
        places = np.searchsorted(self._hashes, unique)
        known = np.zeros(unique.size, dtype=bool)
        inside = places < self._hashes.size
        known[inside] = self._hashes[places[inside]] == unique[inside]
        new = unique[~known]
        if not new.size:
            return
        numbers = np.arange(self._next, self._next + new.size, dtype=np.int64)
        # np.insert copies: the committed arrays stay as they are for a rollback.
        self._hashes, self._numbers = (
            np.insert(self._hashes, places[~known], new),
            np.insert(self._numbers, places[~known], numbers),
        )
        self._next += int(new.size)
        self._new_hashes.append(new)

    def _unknown_frames(self, frames: pa.Table) -> pa.Table:
        """Frames of stacks that have none yet; those of one batch belong together and count at once."""
        numbers = frames.column("stack_id").to_numpy()
        new = [
            number
            for number in np.unique(numbers).tolist()
            if number not in self._framed and number not in self._new_framed
        ]
        self._new_framed.update(new)
        return frames.filter(pa.array(np.isin(numbers, new)))
