"""What a step needs of a device: its blocks, at sizes that are predicted, through the model of the allocator.

Stage: insights. In: a step's blocks with their bytes, settings. Out: a :class:`~.lives.Trace` for the
replays, and how much of a device is there to be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rankmem_aggregator.insights.lives import Array, Op, Trace
from rankmem_aggregator.insights.replays import needed_bytes, run
from rankmem_aggregator.insights.settings import Settings
from rankmem_aggregator.insights.windows import NEVER, Window
from rankmem_protos.devices import HOST_MEMORY

SPARE_SHARE: Final = 0.01
SPARE_BYTES: Final = 256 << 20
"""Of a device that nobody gets: one per cent, 256 MiB at least."""


def usable_bytes(total_bytes: int, beyond_bytes: int | None) -> int:
    """What of a device is there for the allocator.

    Args:
        total_bytes: of the device.
        beyond_bytes: held by the process beyond the allocator, where known.
    """
    spare = round(max(total_bytes * SPARE_SHARE, SPARE_BYTES))
    return max(total_bytes - spare - (beyond_bytes or 0), 0)


def usable_on(device_type: str, total_bytes: int, beyond_bytes: int | None) -> int:
    """What of so much memory there is for a rank: on the host, which has no allocator's pool, all of it."""
    return total_bytes if device_type in HOST_MEMORY else usable_bytes(total_bytes, beyond_bytes)


def trace_at(window: Window, sizes: Array, settings: Settings, workspaces: Sequence[int] = ()) -> Trace:
    """What the allocator is asked in a step whose blocks have these sizes.

    Args:
        workspaces: the bytes of blocks that libraries hold all the time, which are not in the step.
    """
    trace = Trace(settings=settings)
    for size_bytes in workspaces:
        _older(trace, size_bytes, trace.group_of(None, 0))
    first = trace.num_older
    groups = [trace.group_of(pool, stream) for pool, stream in zip(window.pool, window.stream, strict=True)]
    num_older = window.num_older
    for place in range(num_older):
        _older(trace, int(sizes[place]), groups[place])
    for place, is_birth in _order(window):
        trace.ops.append(int(Op.ALLOC if is_birth else Op.FREE))
        trace.block.append(first + place)
        trace.requested.append(int(sizes[place]) if is_birth else 0)
        trace.group.append(groups[place])
        trace.address.append(0)
        trace.reserved.append(0)
    return trace


def _older(trace: Trace, size_bytes: int, group: int) -> None:
    trace.older_address.append(trace.num_older)
    trace.older_requested.append(size_bytes)
    trace.older_block_bytes.append(0)
    trace.older_group.append(group)


def _order(window: Window) -> list[tuple[int, bool]]:
    """Births and deaths within the step, in order: the block's place, and whether it is born."""
    born = np.arange(window.num_older, len(window))
    died = np.flatnonzero(window.died < NEVER)
    times = np.concatenate([window.died[died], window.born[born]])
    places = np.concatenate([died, born])
    is_birth = np.concatenate([np.zeros(len(died), bool), np.ones(len(born), bool)])
    order = np.argsort(times, kind="stable")
    return list(zip(places[order].tolist(), is_birth[order].tolist(), strict=True))


def reserved_and_needed(trace: Trace) -> tuple[int, int]:
    """The most bytes reserved where there is room, and the smallest device on which the step runs."""
    outcome = run(trace, trace.settings)
    return outcome.reserved_peak_bytes, needed_bytes(trace, trace.settings, outcome)


def runs_in(trace: Trace, capacity_bytes: float) -> bool:
    """Whether the step runs where the allocator gets so many bytes."""
    return run(trace, replace(trace.settings, capacity_bytes=int(capacity_bytes))).failed_at is None
