"""Traces out of an allocator's own entries, and a model that decides everything by itself.

Stage: tests. In: entries (action, address, size, stream, pool) of PyTorch's history or of the tap's records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rankmem_agent.spool.layout import Action
from rankmem_aggregator.insights.allocator import Allocator, OutOfMemory
from rankmem_aggregator.insights.lives import Trace, trace_of
from rankmem_aggregator.insights.settings import SMALL_BYTES_MAX, Settings

Entry = tuple[int, ...]
GAINS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
LOSSES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_PLACE = (("address", pa.int64()), ("size_bytes", pa.int64()), ("stream", pa.int64()), ("pool", pa.string()))
START = pa.schema(
    [("kind", pa.string()), ("allocation_id", pa.int64()), ("block_bytes", pa.int64()), *_PLACE]
)
EVENTS = pa.schema([("seq", pa.int64()), ("action", pa.string()), ("allocation_id", pa.int64()), *_PLACE])


@dataclass(slots=True, kw_only=True)
class Start:
    """What an allocator held: segments (address, size, stream, pool) and blocks (with the requested size)."""

    segments: Sequence[Entry] = ()
    blocks: Sequence[Entry] = ()
    """Address, the allocator's size, requested, stream, pool."""
    knows_sizes: bool = True


def trace(entries: Iterable[Entry], settings: Settings, start: Start | None = None) -> Trace:
    """What the allocator was asked, from its beginning or from a state on."""
    start = start or Start()
    alive = {block[0]: -1 - number for number, block in enumerate(start.blocks)}
    rows = [
        {"kind": "segment", "allocation_id": None, "block_bytes": None} | _place(address, size, stream, pool)
        for address, size, stream, pool in start.segments
    ]
    rows += [
        {"kind": "block", "allocation_id": alive[address], "block_bytes": size if start.knows_sizes else None}
        | _place(address, requested, stream, pool)
        for address, size, requested, stream, pool in start.blocks
    ]
    events: list[dict[str, Any]] = []
    for seq, (action, address, size, stream, pool) in enumerate(entries):
        if action in (Action.FREE_REQUESTED, Action.SNAPSHOT):
            continue
        block = None
        if action == Action.ALLOC:
            block = alive[address] = seq
        elif action == Action.FREE_COMPLETED:
            block = alive.pop(address)
        where = 0 if action == Action.OOM else address
        events.append(
            {"seq": seq, "action": Action(action).name.lower(), "allocation_id": block}
            | _place(where, size, stream, pool)
        )
    return trace_of(pa.Table.from_pylist(rows, START), pa.Table.from_pylist(events, EVENTS), settings)


def _place(address: int, size: int, stream: int, pool: int) -> dict[str, Any]:
    text = f"{pool >> 32}.{pool & 0xFFFF_FFFF}" if pool else None
    return {"address": address, "size_bytes": size, "stream": stream, "pool": text}


@dataclass(slots=True)
class Driven:
    """What a model did that got the requests alone: it flushed, collected and failed by its own rules."""

    requests: int = 0
    same_address: int = 0
    same_actions: int = 0
    """Segments taken and given back for a request, by size; by address, where ``by_address``."""
    same_end: int = 0
    """Served where the allocator served, failed where it failed."""
    failed: int = 0


def drive(entries: Iterable[Entry], settings: Settings, *, by_address: bool) -> Driven:
    """Gives a model the requests and frees of an allocator whose cache nobody emptied.

    A new segment lies where the allocator got one of its size for the same request.
    """
    found, moves = Driven(), list[tuple[str, int, int]]()
    given: list[tuple[str, int, int]] = []

    def place(size: int) -> int | None:
        for at, (action, address, its) in enumerate(given):
            if action == "segment_map" or its == size:
                return address if action == "segment_map" else given.pop(at)[1]
        return None

    model = Allocator(settings, place)
    made = model.device.actions = list[tuple[str, int, int]]()
    alive: dict[int, int] = {}
    for number, (action, address, size, stream, pool) in enumerate(entries):
        if action in (*GAINS, *LOSSES):
            moves.append((Action(action).name.lower(), address, size))
        elif action == Action.FREE_COMPLETED:
            model.free(alive.pop(address))
        elif action in (Action.ALLOC, Action.OOM):
            given[:] = [move for move in moves if move[0] in ("segment_alloc", "segment_map")]
            made.clear()
            found.requests += 1
            try:
                if action == Action.OOM:  # its size is rounded
                    where = model.take(
                        number, size, model.pool(pool or None, size <= SMALL_BYTES_MAX, stream)
                    )
                    at = where.address
                else:
                    at = model.malloc(number, size, stream, pool or None)
                alive[address] = number
                found.same_end += action == Action.ALLOC
                found.same_address += at == address
            except OutOfMemory:
                found.failed += 1
                found.same_end += action == Action.OOM
            found.same_actions += _comparable(made, by_address) == _comparable(moves, by_address)
            moves.clear()
    return found


def _comparable(moves: list[tuple[str, int, int]], by_address: bool) -> list[tuple[str, int, int]]:
    """In any order: the allocator's is that of its pools in memory."""
    return sorted((action, address if by_address else 0, size) for action, address, size in moves)
