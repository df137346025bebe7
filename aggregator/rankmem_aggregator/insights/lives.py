"""What a device's allocator was asked, in order: requests, frees and flushes, out of a recording.

Stage: insights, in the reader's process. In: the answers of ``allocator_events`` and ``allocator_start``.
Out: :class:`Trace`, which every replay reads. A block is freed when its last stream is done with it
(free_completed), so what other streams still used is exact.

**Flushes.** A run of segment_free (segment_unmap) is the program's where a marker says that it emptied the
cache then. Without such markers it is a retry where a segment comes right after it and the two together would
have been more than was ever reserved, and more than half of the device: it had no room. A retry is a
consequence, which a replay on another device or with other settings leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.insights.settings import Settings

Group = tuple[str | None, int]
"""Private pool (None: the default one) and stream."""
Array = npt.NDArray[Any]
GAINS: Final = frozenset({"segment_alloc", "segment_map"})
LOSSES: Final = frozenset({"segment_free", "segment_unmap"})


class Op(IntEnum):
    """What the allocator was asked, or did."""

    ALLOC = 0
    FREE = 1
    EMPTY_CACHE = 2
    RETRY = 3
    """It gave back what it could, since the device had no room for a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderSegment:
    """A segment that is older than the recording."""

    address: int
    size_bytes: int
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A request that found no room."""

    place: int
    """The op before which it came."""
    seq: int
    """Its position in the rank's log."""
    block_bytes: int
    """What the allocator would have taken."""
    group: int


@dataclass(slots=True, kw_only=True)
class Trace:
    """One device of a rank. Blocks have dense numbers, those older than the recording first."""

    settings: Settings
    """Under which it was recorded."""
    groups: list[Group] = field(default_factory=list)
    """Private pools and streams; elsewhere by their places here."""
    segments: list[OlderSegment] = field(default_factory=list)
    older_address: list[int] = field(default_factory=list)
    """Of each older block; likewise the next three."""
    older_requested: list[int] = field(default_factory=list)
    older_block_bytes: list[int] = field(default_factory=list)
    """The allocator's own size; 0 where it is not recorded."""
    older_group: list[int] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    """Members of :class:`Op`."""
    block: list[int] = field(default_factory=list)
    """Of an ALLOC or FREE its block's number, else -1; likewise the next three for each op."""
    requested: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    address: list[int] = field(default_factory=list)
    """Of an ALLOC, as recorded."""
    reserved: list[int] = field(default_factory=list)
    """Bytes reserved after each op, as recorded."""
    moves: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    """By op: action, address and bytes of what it took from the device or gave back."""
    flushed_pools: dict[int, frozenset[str]] = field(default_factory=dict)
    """By flush: private pools of which it gave segments back."""
    failures: list[FailedRequest] = field(default_factory=list)
    """They are no ops."""
    num_unknown_frees: int = 0
    """Frees of blocks that nothing tells of."""
    num_unknown_pools: int = 0
    """Segments that may have been a private pool's, which nothing tells: they count as the default one's."""
    lacks_expandable: bool = False
    """Whether ``expandable_segments`` was set, but segments were taken whole: some platforms have none."""

    @property
    def num_older(self) -> int:
        """Blocks older than the recording."""
        return len(self.older_address)

    @property
    def num_allocations(self) -> int:
        """Allocations of the recording."""
        return self.ops.count(Op.ALLOC)

    @property
    def reserved_at_start(self) -> int:
        """Bytes of the older segments."""
        return sum(each.size_bytes for each in self.segments)

    def recorded_peak_bytes(self) -> int:
        """The highest that was reserved."""
        return max(self.reserved, default=self.reserved_at_start)

    def group_of(self, private: str | None, stream: int | None) -> int:
        """The place of a private pool and stream among the groups."""
        key = (private, stream or 0)
        if key not in self.groups:
            self.groups.append(key)
        return self.groups.index(key)


def trace_of(start: pa.Table, events: pa.Table, settings: Settings, device_bytes: int | None = None) -> Trace:
    """What a device's allocator was asked.

    Args:
        start: rows of ``allocator_start``: kind (segment, block), allocation_id, address, size_bytes,
            block_bytes, stream, pool.
        events: rows of ``allocator_events``, in order: seq, action, address, size_bytes, stream, pool,
            allocation_id, by_program (may be left out).
        settings: those of the recording; a page that it maps shows that its segments are expandable, and
            whole segments without such a page that they are not, whatever is set.
        device_bytes: memory of the device, where known.
    """
    lacks_expandable = False
    if pc.any(pc.is_in(events["action"], pa.array(["segment_map", "segment_unmap"]))).as_py():
        settings = replace(settings, expandable_segments=True)
    elif settings.expandable_segments:
        whole = pc.and_(pc.equal(events["action"], "segment_alloc"), pc.is_null(events["pool"]))
        lacks_expandable = bool(pc.any(whole).as_py())
        settings = replace(settings, expandable_segments=not lacks_expandable)
    trace = Trace(settings=settings, lacks_expandable=lacks_expandable)
    numbers = _with_start(trace, start)
    _Reading(trace, numbers, (device_bytes or 0) // 2).read(events)
    return trace


def _with_start(trace: Trace, start: pa.Table) -> dict[int, int]:
    """Fills in what is older than the recording; the blocks' numbers by allocation_id."""
    numbers: dict[int, int] = {}
    for row in start.to_pylist():
        group = trace.group_of(row["pool"], row["stream"])
        if row["kind"] == "segment":
            trace.segments.append(
                OlderSegment(address=row["address"], size_bytes=row["size_bytes"], group=group)
            )
            continue
        numbers[row["allocation_id"]] = len(numbers)
        trace.older_address.append(row["address"])
        trace.older_requested.append(row["size_bytes"])
        trace.older_block_bytes.append(row["block_bytes"] or 0)
        trace.older_group.append(group)
    return numbers


class _Reading:
    """Reads the events, once."""

    def __init__(self, trace: Trace, numbers: dict[int, int], never_full_bytes: int) -> None:
        self._trace = trace
        self._never_full_bytes = never_full_bytes
        """With so much reserved the device has room."""
        self._numbers = numbers
        """Of blocks alive, by allocation_id."""
        self._count = len(numbers)
        self._reserved = trace.reserved_at_start
        self._moves: list[tuple[str, int, int]] = []
        """Of the op to come."""
        self._flush = -1
        """The op of the flush that goes on."""
        self._before_flush: dict[int, int] = {}
        """By flush: reserved before it."""
        self._by_program: dict[int, bool | None] = {}
        """By flush: whether the program emptied the cache; None where calls of it are not recorded."""

    def read(self, events: pa.Table) -> None:
        columns = ("action", "address", "size_bytes", "stream", "pool", "allocation_id", "seq")
        found = [events[name].to_pylist() for name in columns]
        known = "by_program" in events.column_names
        marked = events["by_program"].to_pylist() if known else [None] * events.num_rows
        for action, address, size_bytes, stream, pool, allocation_id, seq, by_program in zip(
            *found, marked, strict=True
        ):
            if action == "alloc":
                number = self._numbers[allocation_id] = self._count
                self._count += 1
                self._op(Op.ALLOC, number, size_bytes, self._trace.group_of(pool, stream), address)
            elif action == "free_completed":
                number = self._numbers.pop(allocation_id, -1)
                if number < 0:
                    self._trace.num_unknown_frees += 1
                else:
                    self._op(Op.FREE, number)
            elif action in LOSSES:
                self._give(action, address, size_bytes, pool)
                self._by_program.setdefault(self._flush, by_program)
                continue
            elif action in GAINS:
                self._reserved += size_bytes
                self._moves.append((action, address, size_bytes))
                continue
            elif action == "oom":
                self._failed(seq, size_bytes or 0, stream, pool)
            self._flush = -1
        self._judge_flushes()

    def _failed(self, seq: int, size_bytes: int, stream: int | None, pool: str | None) -> None:
        trace = self._trace
        failed = FailedRequest(
            place=len(trace.ops), seq=seq, block_bytes=size_bytes, group=trace.group_of(pool, stream)
        )
        trace.failures.append(failed)
        if self._flush >= 0 and self._by_program[self._flush] is None:
            self._by_program[self._flush] = False  # it found no room with the cache given back, either

    def _op(self, op: Op, block: int = -1, requested: int = 0, group: int = 0, address: int = 0) -> None:
        trace = self._trace
        if self._moves and op == Op.ALLOC:
            trace.moves[len(trace.ops)] = self._moves
            self._moves = []
        trace.ops.append(int(op))  # comparing an enum's members takes twice as long
        trace.block.append(block)
        trace.requested.append(requested)
        trace.group.append(group)
        trace.address.append(address)
        trace.reserved.append(self._reserved)

    def _give(self, action: str, address: int, size_bytes: int, pool: str | None) -> None:
        trace = self._trace
        if self._flush < 0:
            self._flush = len(trace.ops)
            self._before_flush[self._flush] = self._reserved
            self._op(Op.EMPTY_CACHE)
            trace.moves[self._flush], trace.flushed_pools[self._flush] = [], frozenset()
        self._reserved -= size_bytes
        trace.reserved[self._flush] = self._reserved
        trace.moves[self._flush].append((action, address, size_bytes))
        if pool is not None:
            trace.flushed_pools[self._flush] |= {pool}

    def _judge_flushes(self) -> None:
        trace = self._trace
        highest = max(trace.recorded_peak_bytes(), self._never_full_bytes)
        for flush, before in self._before_flush.items():
            taken = trace.moves.get(flush + 1, ())
            by_program = self._by_program[flush]
            if by_program is None:
                by_program = not taken or before + sum(size for _, _, size in taken) <= highest
            if not by_program:
                trace.ops[flush] = int(Op.RETRY)


def block_bytes_of(trace: Trace, settings: Settings) -> tuple[Sequence[int], Sequence[int]]:
    """What the allocator takes under these settings: for each op, and for each older block."""
    of_ops, older = (
        settings.block_bytes(np.fromiter(requested, np.int64, len(requested)))
        for requested in (trace.requested, trace.older_requested)
    )
    return of_ops.tolist(), older.tolist()
