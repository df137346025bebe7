"""Recordings on devices too small for them: where they fail, by a model of the allocator that decides alone.

Stage: tests and benchmarks. In: a trace of a recording that ran, and a capacity. Out: the same as it would
have been recorded there, and what other settings would have done, request by request: written apart from
``insights.oom_replay``, over the slow model for the settings that it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from allocator_oracle import Oracle
from rankmem_aggregator.insights.allocator import Allocator, OutOfMemory
from rankmem_aggregator.insights.lives import FailedRequest, Op, Trace
from rankmem_aggregator.insights.settings import UNLIMITED, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request for which a device was too small."""

    trace: Trace
    """Up to the failure, with it."""
    capacity: int
    device_free: int
    """By the allocator's figure, after it gave its cache back."""
    alive: int
    """In blocks then."""
    request: int

    def state_says_fragmented(self) -> bool:
        """The rule that looks at the state alone: there was room for it, so it was in pieces."""
        return self.capacity - self.alive >= self.request


def failures(trace: Trace, capacities: list[int]) -> Iterator[Failed]:
    """Where a recording of default settings fails on devices of these capacities."""
    for capacity in capacities:
        held: list[int] = []
        found = _end(trace, replace(trace.settings, capacity_bytes=capacity), held=held)
        if found is None or found[0] < 1:
            continue
        place, reserved, alive = found
        size = int(trace.settings.block_bytes(np.array([trace.requested[place]]))[0])
        failed = FailedRequest(place=place, seq=place, block_bytes=size, group=trace.group[place])
        held[-1] = reserved
        yield Failed(
            trace=replace(trace, reserved=held + trace.reserved[place:], failures=[failed]),
            capacity=capacity,
            device_free=capacity - reserved,
            alive=alive,
            request=size,
        )


def runs(failed: Failed, settings: Settings) -> bool:
    """Whether the request finds room with these settings and all requests before it."""
    asked = failed.trace
    place = asked.failures[0].place
    end = _end(asked, replace(settings, capacity_bytes=failed.capacity), until=place)
    return end is None


def runs_by_oracle(failed: Failed, *, max_split: int = UNLIMITED) -> bool:
    """The same by the slow model, of a recording from the start."""
    asked, oracle = failed.trace, Oracle(capacity=failed.capacity, max_split=max_split)
    for place in range(asked.failures[0].place + 1):
        op, block = asked.ops[place], asked.block[place]
        if op == Op.ALLOC:
            _, stream = asked.groups[asked.group[place]]
            if oracle.malloc(block, asked.requested[place], stream) is None:
                return False
        elif op == Op.FREE:
            oracle.free(block)
        elif op == Op.EMPTY_CACHE:
            oracle.empty_cache()
    return True


def _end(
    trace: Trace, settings: Settings, until: int | None = None, held: list[int] | None = None
) -> tuple[int, int, int] | None:
    """The op that finds no room, with what is reserved and in blocks then; None where all do.

    ``held``: gets what is reserved after each op.
    """
    model = Allocator(settings)
    place = -1
    try:
        for number in sorted(range(trace.num_older), key=lambda number: trace.older_address[number]):
            private, stream = trace.groups[trace.older_group[number]]
            model.malloc(number, trace.older_requested[number], stream, private)
        for place, op in enumerate(trace.ops[: None if until is None else until + 1]):
            if op == Op.ALLOC:
                private, stream = trace.groups[trace.group[place]]
                model.malloc(trace.block[place], trace.requested[place], stream, private)
            elif op == Op.FREE:
                model.free(trace.block[place])
            elif op == Op.EMPTY_CACHE:
                model.empty_cache(trace.flushed_pools[place])
            if held is not None:
                held.append(model.device.reserved_bytes)
    except OutOfMemory:
        return place, model.device.reserved_bytes, model.live_bytes
    return None
