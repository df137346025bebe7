"""PyTorch's caching allocator, replayed: ``from rankmem import replay``.

By itself, a model of the allocator of one device::

    allocator = replay.Allocator(replay.Settings(expandable_segments=True))
    address = allocator.malloc("weights", 5 << 20)
    allocator.free("weights")
    allocator.device.reserved_bytes

Over a recording, of a database or straight from PyTorch's memory snapshot::

    trace = connect("rankmem.duckdb").allocator_trace(rank=0)
    trace = replay.trace_of_snapshot(torch.cuda.memory._snapshot())

    replay.check(trace).is_exact                       # every address and every byte as recorded
    settings = trace.settings.changed("max_split_size_mb:128")
    replay.run(trace, settings).reserved_peak_bytes    # what these settings would reserve
    replay.needed_bytes(trace, settings)               # the smallest device on which they would do

What is modelled, what was measured and what was not: docs/insights.md. Importing this module loads numpy and
Arrow, neither torch nor DuckDB.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pyarrow as pa

from rankmem_agent.spool.layout import Action
from rankmem_agent.tap import snapshot_format
from rankmem_aggregator.insights.allocator import Allocator, OutOfMemory
from rankmem_aggregator.insights.lives import Op, Trace, trace_of
from rankmem_aggregator.insights.replays import Check, Outcome, check, needed_bytes, run
from rankmem_aggregator.insights.settings import Settings
from rankmem_protos.errors import Code, RankmemError

__all__ = [
    "Allocator", "Check", "Op", "OutOfMemory", "Outcome", "Settings", "Trace", "check", "needed_bytes", "run",
    "trace_of_snapshot",
]  # fmt: skip

_REPLAYED = frozenset(Action) - {Action.FREE_REQUESTED, Action.SNAPSHOT}
_PLACE = (("address", pa.int64()), ("size_bytes", pa.int64()), ("stream", pa.int64()), ("pool", pa.string()))
_START = pa.schema(
    [("kind", pa.string()), ("allocation_id", pa.int64()), ("block_bytes", pa.int64()), *_PLACE]
)
_EVENTS = pa.schema([("seq", pa.int64()), ("action", pa.string()), ("allocation_id", pa.int64()), *_PLACE])


def trace_of_snapshot(
    snapshot: dict[str, Any], device: int = 0, settings: Settings | None = None, device_type: str = "cuda"
) -> Trace:
    """What the allocator of a device was asked while a memory snapshot's history was recorded.

    Private pools are those of the segments at the end, where the history does not tell them; a segment given
    back before counts as the default pool's (``num_unknown_pools`` of the trace says how many).

    Args:
        snapshot: what ``torch.cuda.memory._snapshot()`` returns, or ``_dump_snapshot`` has pickled.
        device: the device's number in it.
        settings: of the allocator; None: those that the snapshot states.
        device_type: ``npu`` for a snapshot of torch_npu, which does not say that it is one and whose
            allocator aligns blocks otherwise.

    Raises:
        RankmemError: INVALID if it is no snapshot, NOT_FOUND if it has nothing of that device.
    """
    found = {each.device_index: each for each in snapshot_format.parse(snapshot)}
    if device not in found:
        raise RankmemError(
            Code.NOT_FOUND, f"the snapshot has nothing of device {device}", f"one of {sorted(found)}"
        )
    before = snapshot_format.baseline(found[device])
    older = sorted(before.blocks.values())
    start = [_row("segment", None, each, each.size_bytes) for each in sorted(before.segments.values())]
    start += [_row("block", -1 - n, each, each.requested_bytes) for n, each in enumerate(older)]
    alive = {block.address: -1 - number for number, block in enumerate(older)}
    numbers = count()
    events = []
    for seq, event in enumerate(found[device].events):
        if event.action not in _REPLAYED:
            continue
        block = None
        if event.action is Action.ALLOC:
            block = alive[event.address] = next(numbers)
        elif event.action is Action.FREE_COMPLETED:
            block = alive.pop(event.address, None)
        events.append(
            {"seq": seq, "action": event.action.name.lower(), "allocation_id": block}
            | _place(event, event.size_bytes)
        )
    given = settings or Settings.recorded(_settings_text(snapshot), device_type)
    trace = trace_of(pa.Table.from_pylist(start, _START), pa.Table.from_pylist(events, _EVENTS), given)
    trace.num_unknown_pools = found[device].num_unknown_pools
    return trace


def _row(kind: str, number: int | None, what: Any, size_bytes: int) -> dict[str, Any]:
    block_bytes = getattr(what, "block_bytes", None)
    return {"kind": kind, "allocation_id": number, "block_bytes": block_bytes} | _place(what, size_bytes)


def _place(what: Any, size_bytes: int) -> dict[str, Any]:
    """Where its bytes lie; a number above 2**63 as the signed one of the same bits, as databases have it."""
    address, stream = _signed(what.address), _signed(what.stream)
    pool = f"{what.pool >> 32}.{what.pool & 0xFFFF_FFFF}" if what.pool else None
    return {"address": address, "size_bytes": size_bytes, "stream": stream, "pool": pool}


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _settings_text(snapshot: dict[str, Any]) -> str | None:
    settings = snapshot.get("allocator_settings")
    return json.dumps(settings) if settings else None
