"""A device that two ranks and somebody else share, seen from outside. Stage: tests and documentation."""

from __future__ import annotations

from typing import Any

import duckdb

from constructed import SECOND_NS, RankLog, store_logs, store_rows

GIB = 1 << 30
MIB = 1 << 20
GPU = "cuda:0"
UUID = "GPU-1234"
RUNTIME = 480 * MIB
"""Held by each process before its first allocation."""
FOREIGN = 7 * GIB
TOTAL = 80 * GIB


def shared_device(
    connection: duckdb.DuckDBPyConnection, *, uuid: str | None = UUID, component: str | None = "NCCL"
) -> None:
    """Two ranks on one device, an hour after a third process took its part; ``component``: sampled too."""
    logs = [RankLog(rank=rank, ended=9 * SECOND_NS) for rank in range(2)]
    held = 2 * RUNTIME + FOREIGN
    for log in logs:
        on_device = {"device_used_bytes": held, "device_total_bytes": TOTAL}
        log.sample(RUNTIME, at=SECOND_NS, device=GPU, **on_device)
        log.alloc("weights", (18 + log.rank) * GIB, at=2 * SECOND_NS, device=GPU)
        log.events[-1]["reserved_bytes"] = (20 + log.rank) * GIB
    held += 41 * GIB + 2 * (300 + 500) * MIB
    for log in logs:
        on_device = {"device_used_bytes": held, "device_total_bytes": TOTAL}
        app = (20 + log.rank) * GIB + RUNTIME + 800 * MIB
        log.sample(app, at=3 * SECOND_NS + log.rank * 1000, device=GPU, **on_device)
    store_logs(connection, logs)
    store_rows(connection, "device_info", [whose(log) | {"uuid": uuid, "source": "tap"} for log in logs])
    if component is not None:
        samples = [
            whose(log)
            | {"time_ns": log.samples[-1]["time_ns"], "component": component, "reserved_bytes": 300 * MIB}
            for log in logs
        ]
        store_rows(connection, "component_sample", samples)


def whose(log: RankLog) -> dict[str, Any]:
    """The keys of a device's rows."""
    return {"session_id": log.session_id, "attempt": 0, "rank": log.rank, "device": GPU}
