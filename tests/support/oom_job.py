"""A job that ran out of memory on a small device. Stage: tests and documentation."""

from __future__ import annotations

from typing import Any

import duckdb

from allocated_logs import DEVICE, AllocatorLog
from allocator_oracle import MIB, Oracle
from constructed import SECOND_NS, store_logs, store_rows

CAPACITY = 640 * MIB
OTHERS = 120 * MIB
BEYOND = 90 * MIB
"""Held by the process beyond its allocator."""


def failing(
    sizes: list[int] | None = None, *, capacity: int = CAPACITY, last: int | None = None
) -> tuple[AllocatorLog, int]:
    """A log whose last request fails, and what is free on the device then.

    Args:
        sizes: requests in MiB, negative: the n-th request is freed; None: a dozen segments of which a small
            block each holds all but 28 MiB, then requests for 29.
        capacity: what the device gives.
        last: the request that fails; None: the first one that does.
    """
    log = AllocatorLog(Oracle(capacity=capacity))
    log.start()
    names: list[int] = []
    asked = sizes if sizes is not None else _in_pieces()
    for size in [*asked, *([] if last is None else [last])]:
        if size < 0:
            log.free(names[-size - 1])
            continue
        name = log.alloc(size * MIB)
        if name is None:
            free = capacity - log.oracle.reserved
            log.log.oom(
                size * MIB, at=log.now + 1000, device=DEVICE, device_free_bytes=free,
                reserved_bytes=log.oracle.reserved, operator="aten::mm", stack_id=4,
            )  # fmt: skip
            log.log.ended = log.now + 2000
            return log, free
        names.append(name)
    raise AssertionError("every request found room")


def store(
    connection: duckdb.DuckDBPyConnection, log: AllocatorLog, *, others: int | None = OTHERS, **device: Any
) -> None:
    """Stores a log whose device other processes share; ``others``: None if that is not known."""
    own = log.log
    total = None
    if others is not None:
        total = log.oracle.capacity + BEYOND + others
        held = log.oracle.reserved + BEYOND
        seq = own.ooms[0]["seq"]
        own.samples.append(
            {name: own.ooms[0][name] for name in ("session_id", "attempt", "rank", "device")}
            | {"seq": seq, "time_ns": own.ooms[0]["time_ns"] + SECOND_NS, "app_reserved_bytes": held}
        )
    for event in own.events:
        event["reserved_bytes"] = log.oracle.reserved
    store_logs(connection, [own])
    whose = {"session_id": own.session_id, "attempt": 0, "rank": 0, "device": DEVICE}
    store_rows(connection, "device_info", [whose | {"total_bytes": total, "source": "tap"} | device])
    frame = {"stack_id": 4, "ordering": 0, "file_path": "train.py", "line_number": 47, "function": "f"}
    store_rows(connection, "stack_frame", [frame])


def too_small(connection: duckdb.DuckDBPyConnection) -> None:
    """The job of the documentation: fragmented."""
    store(connection, failing()[0])


def _in_pieces() -> list[int]:
    sizes: list[int] = [30] * 12
    for number in range(12):
        sizes += [-(number + 1), 2, 27]
    sizes += [-(14 + 2 * number) for number in range(12)]
    return [*sizes, *[29] * 11]
