"""When the blocks of a process's pools were used, by the ACCESS rows of an msMemScope dump.

Stage: readers; the process of ``rankmem import``. In: the blocks that come and go, and the accesses between;
out: a row of ``allocation_use`` for each block that was used, once it is freed or at the end. An access
belongs to the block with its ``allocation_id``, where the rows have one, else to the block of its pool that
holds its address: a view begins within its block. Held: the blocks alive.

Source: Ascend/msmemscope docs/zh/output_file_spec.md (ACCESS: Ptr, type, allocation_id).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from rankmem_imports.memscope.memory import POOLS, Memory, device_of
from rankmem_imports.memscope.rows import Row, attributes_of, whole
from rankmem_ship.pairing.devices import device_name

NUMBER: Final = "allocation_id"
"""The dump's own number of a block, in the attributes of its rows."""
_Device = tuple[int, int]
_Pool = tuple[_Device, str]


@dataclass(slots=True)
class _Block:
    """A block that is alive, and what is known of its uses."""

    address: int
    size: int
    allocation_id: int
    number: str | None
    uses: int = 0
    first_ns: int = 0
    last_ns: int = 0
    idle: tuple[int, int] | None = None

    def used(self, time_ns: int) -> None:
        if not self.uses:
            self.first_ns = time_ns
        elif self.idle is None or time_ns - self.last_ns > self.idle[1] - self.idle[0]:
            self.idle = self.last_ns, time_ns
        self.uses += 1
        self.last_ns = time_ns


class Uses:
    """Follows one process's rows in the order of time."""

    def __init__(self) -> None:
        self._blocks: dict[_Pool, dict[int, _Block]] = defaultdict(dict)
        self._addresses: dict[_Pool, list[int]] = defaultdict(list)
        self._numbered: dict[tuple[_Pool, str], _Block] = {}
        self._told: list[dict[str, Any]] = []
        self.num_elsewhere = 0
        """Accesses of no block that a row allocated."""

    def made(self, row: Row, memory: Memory, allocation_id: int) -> None:
        """A pool's block was allocated; one at its address is gone."""
        pool = memory.device, memory.kind
        self.freed(memory)
        number = attributes_of(row.attributes).get(NUMBER) if NUMBER in row.attributes else None
        block = _Block(memory.address, memory.size, allocation_id, number)
        self._blocks[pool][memory.address] = block
        insort(self._addresses[pool], memory.address)
        if number is not None:
            self._numbered[pool, number] = block

    def freed(self, memory: Memory) -> None:
        """The block at an address is gone, if there was one."""
        pool = memory.device, memory.kind
        block = self._blocks[pool].pop(memory.address, None)
        if block is not None:
            addresses = self._addresses[pool]
            del addresses[bisect_right(addresses, memory.address) - 1]
            if block.number is not None:
                self._numbered.pop((pool, block.number), None)
            self._tell(pool[0], block)

    def access(self, row: Row) -> None:
        """An operator used a block."""
        attributes = attributes_of(row.attributes)
        pool = _pool_of(row, attributes.get("type"))
        block = self._numbered.get((pool, attributes.get(NUMBER, "")))
        address = row.address
        if address is None and attributes.get("addr"):
            address = whole(attributes["addr"], "addr")
        if block is None and address is not None:
            block = self._block_at(pool, address)
        if block is None:
            self.num_elsewhere += 1
        else:
            block.used(row.time_ns)

    def rows(self, *, final: bool = False) -> list[dict[str, Any]]:
        """Rows of the blocks that are gone since the last call; at the end, of all: without the rank."""
        if final:
            for (device, _), blocks in self._blocks.items():
                for block in blocks.values():
                    self._tell(device, block)
        told, self._told = self._told, []
        return told

    def _block_at(self, pool: _Pool, address: int) -> _Block | None:
        addresses = self._addresses[pool]
        place = bisect_right(addresses, address) - 1
        block = self._blocks[pool][addresses[place]] if place >= 0 else None
        return block if block is not None and address < block.address + block.size else None

    def _tell(self, device: _Device, block: _Block) -> None:
        if block.uses:
            idle = block.idle or (None, None)
            self._told.append(
                {
                    "device": device_name(device[0] << 8 | device[1]),
                    "allocation_id": block.allocation_id,
                    "uses": block.uses,
                    "first_used_ns": block.first_ns,
                    "last_used_ns": block.last_ns,
                    "idle_from_ns": idle[0],
                    "idle_until_ns": idle[1],
                }
            )


def _pool_of(row: Row, kind: str | None) -> _Pool:
    """The pool of an access; PyTorch's where it has no type."""
    name = (kind or "PTA").upper()
    return device_of(row.device), name if name in POOLS else "PTA"
