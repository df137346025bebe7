"""The reference run: a numbered set of events that writer and checker both know without asking each other.

Event k of a rank is a function of k and the rank alone: action, address and size. So whoever finds rows in a
database can say which event each one is, which are missing, and what the totals must be, from here and
nothing else.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankmem_agent.spool.layout import Action, DeviceType, Kind
from rankmem_ship.spool_reader.segments import RECORD_DTYPE

Array = npt.NDArray[Any]

BASE: Final = 0x7000_0000_0000
STRIDE: Final = 1 << 20
LIVE: Final = 50
"""Blocks alive once the run is under way: LIVE allocs first, then allocs and frees take turns."""


def numbers_of(events: Array) -> tuple[Array, Array]:
    """(is_alloc, block) of event numbers."""
    later = events - LIVE
    is_alloc = (later < 0) | (later % 2 == 0)
    block = np.where(later < 0, events, np.where(is_alloc, LIVE + later // 2, later // 2))
    return is_alloc, block


def events_of(is_alloc: Array, block: Array) -> Array:
    """The event numbers of allocs and frees of blocks: the inverse of :func:`numbers_of`."""
    alloc = np.where(block < LIVE, block, LIVE + 2 * (block - LIVE))
    return np.where(is_alloc, alloc, LIVE + 2 * block + 1)


def sizes_of(block: Array, rank: int) -> Array:
    """Sizes of blocks in bytes: multiples of 64, up to 640 KiB."""
    mixed = (block.astype(np.uint64) * np.uint64(2654435761) + np.uint64(rank * 40503)) >> np.uint64(7)
    return (64 * (1 + mixed % np.uint64(10_000))).astype(np.int64)


def totals_of(count: int, rank: int) -> Array:
    """Bytes alive after each of the first ``count`` events: the naive sum."""
    is_alloc, block = numbers_of(np.arange(count))
    sizes = sizes_of(block, rank)
    return np.cumsum(np.where(is_alloc, sizes, -sizes))


def records_of(first: int, count: int, rank: int, time_ns: int) -> Array:
    """Records of the events from ``first`` on, without marks, all of one time."""
    is_alloc, block = numbers_of(np.arange(first, first + count))
    records = np.zeros(count, RECORD_DTYPE)
    records["kind"], records["device_type"] = Kind.EVENT, DeviceType.CPU
    records["action"] = np.where(is_alloc, Action.ALLOC, Action.FREE_COMPLETED)
    records["a"] = BASE + block * STRIDE
    records["b"] = np.where(is_alloc, sizes_of(block, rank), 0)
    records["time_ns"], records["thread"] = time_ns, 1
    return records
