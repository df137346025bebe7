"""The memory that a process of an msMemScope dump held before the dump's first row.

Stage: readers, the first of two passes over a process's rows; the process of ``rankmem import``. In: its
rows in the order of time; out: the blocks that rows free and none allocated, and the rest of each pool's
used bytes at its first row; whether segments or totals show the reserved bytes of each device's pools.
Held: the addresses alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rankmem_agent.spool.layout import UNKNOWN, DeviceType
from rankmem_imports.memscope.memory import APP, DRIVER, Memory, memory_of
from rankmem_imports.memscope.rows import Row

MEMORY_EVENTS: Final = ("MALLOC", "FREE")
NO_ADDRESS: Final = UNKNOWN - 1
"""Of the first rest, the next ones below it: a replay tells blocks apart by their addresses. As they are
stored, below 0, so that none is one of a row's."""
_Device = tuple[int, int]
_Pool = tuple[_Device, str]
"""Device and kind."""


class OlderBlock(NamedTuple):
    """An older block; the rest of a pool has an address that no block has."""

    device: _Device
    component: str
    address: int
    size: int


@dataclass(slots=True)
class Before:
    """Adds up as the rows go by."""

    used: dict[_Pool, int] = field(default_factory=dict)
    """Bytes that each pool used before its first row."""
    _alive: set[tuple[_Pool, int]] = field(default_factory=set)
    _freed: list[tuple[_Pool, OlderBlock]] = field(default_factory=list)
    _components: dict[_Pool, str] = field(default_factory=dict)
    _has_segments: set[_Device] = field(default_factory=set)
    _too_low: set[_Device] = field(default_factory=set)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Before:
        """The state before a process's rows."""
        found = cls()
        for row in rows:
            if row.event in MEMORY_EVENTS:
                found._add(memory_of(row))
        return found

    def older(self) -> Iterator[OlderBlock]:
        """Blocks, then the rests of pools."""
        for _, block in self._freed:
            yield block
        for number, (pool, rest) in enumerate(self._rests()):
            if rest > 0:
                yield OlderBlock(pool[0], self._components[pool], NO_ADDRESS - number, rest)

    def rest_bytes(self) -> int:
        """Bytes of older blocks that are in no row."""
        return sum(max(rest, 0) for _, rest in self._rests())

    def knows_reserved(self, device: _Device) -> bool:
        """Whether rows show what the device's pools hold from the driver: segments from the beginning on, or
        totals that include the used bytes. (Some versions give the total of one segment.)"""
        if device in self._has_segments:
            return not any(used for (where, _), used in self.used.items() if where == device)
        return device not in self._too_low

    def has_segments(self, device: _Device) -> bool:
        """Whether the driver's rows for the process itself are there."""
        return device in self._has_segments

    def _add(self, memory: Memory) -> None:
        if memory.kind == DRIVER:
            if memory.module == APP and memory.device[0] == DeviceType.NPU:
                self._has_segments.add(memory.device)
            return
        pool = memory.device, memory.kind
        self._components.setdefault(pool, memory.component())
        if memory.used is not None:
            change = memory.size if memory.is_alloc else -memory.size
            self.used.setdefault(pool, max(memory.used - change, 0))
            if memory.total is not None and memory.total < memory.used:
                self._too_low.add(memory.device)
        key = pool, memory.address
        if memory.is_alloc:
            self._alive.add(key)
        elif key in self._alive:
            self._alive.remove(key)
        elif memory.size:
            block = OlderBlock(memory.device, memory.component(), memory.address, memory.size)
            self._freed.append((pool, block))

    def _rests(self) -> list[tuple[_Pool, int]]:
        rests = dict(self.used)
        for pool, block in self._freed:
            if pool in rests:
                rests[pool] -= block.size
        return list(rests.items())
