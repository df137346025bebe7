"""Reads PyTorch's memory snapshots: the trace of events, the segments, and what was alive before the trace.

Stage: trainer (the fallback drain) and imports. Comes in: what ``torch.cuda.memory._snapshot()`` returns,
live or out of a file that another module has read. Goes out: events and blocks with the spool's words
(actions, packed pools). Pure functions, standard library only, so that the trainer may use it; nothing is
trusted to have the type or the order it should have.

**Baseline.** A trace that starts late, or whose ring was overwritten, begins with blocks it never saw made.
They are found by running the trace backwards from ``segments``, the state at its end. Trace and segments
are read under two locks, one after the other, so a few events may be in one and not in the other:
they are reconciled by address and counted as residue, never an error.

**Private pools.** PyTorch's entries tell no pool (seen up to 2.11), the segments at the end do. An event is
of the pool in whose segment it lies, if that segment is still there at the end. Of one that was given back
before nothing tells the pool: it is taken for the default one's, and counted.

Source: ``_snapshot``'s docstring in torch/cuda/memory.py (2.6 to 2.13); torch 2.0's form (blocks without
address, ``history`` in place of frames) and torch_npu's (no times, raw stream pointers) from recordings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rankmem_agent.spool.layout import Action
from rankmem_agent.tap.snapshot_pools import GAINS, LOSES, private_pools
from rankmem_protos.bounds import SIZE_BYTES_MAX
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.plain_errors import plain

ACTION_OF_NAME: Final[dict[str, Action]] = {action.name.lower(): action for action in Action}
"""PyTorch's names of actions are ours; one that is not here (``annotate``) is no event of memory."""

_HINT: Final = "give a snapshot written by torch.cuda.memory._dump_snapshot()"
_U64_MASK: Final = 2**64 - 1
MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""Raised while plain data that is no snapshot is read."""


class Event(NamedTuple):
    """One entry of a device's trace."""

    action: Action
    address: int
    """0 for oom."""
    size_bytes: int
    """Requested size of the block, or size of the segment."""
    stream: int
    pool: int
    """first << 32 | second of the private pool's id; 0 for none, or where nothing tells it."""
    time_us: int | None
    device_free_bytes: int | None
    """For oom alone."""
    frames: Sequence[dict[str, Any]]
    """As recorded, innermost first; shared between events, so never changed."""


class Block(NamedTuple):
    """A block that is in use, or freed and awaiting another stream."""

    address: int
    requested_bytes: int
    stream: int
    pool: int
    awaiting_free: bool
    frames: Sequence[dict[str, Any]]
    block_bytes: int = 0
    """The allocator's own size; 0 where only the request is known."""


class Segment(NamedTuple):
    """A range that the allocator holds from the device."""

    address: int
    size_bytes: int
    stream: int
    pool: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """One device's part of a snapshot."""

    device_index: int
    events: list[Event]
    """In the allocator's order, which breaks ties of time."""
    blocks: dict[int, Block]
    """In use or awaiting a free, at the end, by address."""
    segments: list[Segment]
    num_unknown_pools: int = 0
    """Segments, or parts of expandable ones, of which nothing tells whether they were a private pool's."""


@dataclass(slots=True, kw_only=True)
class MemoryState:
    """Blocks and segments alive at an instant, and how many events did not fit."""

    blocks: dict[int, Block] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)
    residue: int = 0

    def requested_bytes(self) -> int:
        """Requested bytes of the blocks."""
        return sum(block.requested_bytes for block in self.blocks.values())

    def reserved_bytes(self) -> int:
        """Bytes of the segments."""
        return sum(segment.size_bytes for segment in self.segments.values())


def parse(raw: object, *, source: str = "the snapshot") -> list[DeviceSnapshot]:
    """The devices of the dictionary that ``_snapshot()`` returns that have events or segments.

    Raises:
        RankmemError: INVALID where it is no snapshot.
    """
    try:
        return [_device(number, trace, segments) for number, trace, segments in split(raw)]
    except MALFORMED as exc:
        raise no_snapshot(source, exc) from exc


def split(raw: Any) -> list[tuple[int, Sequence[dict[str, Any]], list[dict[str, Any]]]]:
    """(number, trace, segments) of each device that has events or segments, by number.

    Raises:
        one of MALFORMED: it is no snapshot.
    """
    if not isinstance(raw, dict) or not isinstance(raw["segments"], list):
        raise TypeError("no segments")
    traces = raw["device_traces"]
    if not isinstance(traces, list | tuple):
        raise ValueError("device_traces is not a list")
    by_device: dict[int, list[dict[str, Any]]] = {}
    for segment in raw["segments"]:
        by_device.setdefault(int(segment["device"]), []).append(segment)
    numbers = sorted({*by_device, *(number for number, trace in enumerate(traces) if trace)})
    if numbers and numbers[0] < 0:
        raise ValueError(f"a device {numbers[0]}")
    return [
        (number, traces[number] if number < len(traces) else (), by_device.get(number, []))
        for number in numbers
    ]


def no_snapshot(source: str, exc: Exception) -> RankmemError:
    """The error for plain data that is no snapshot."""
    message = f"{source} is no memory snapshot of PyTorch ({plain(exc)})"
    return RankmemError(Code.INVALID, message, _HINT)


def device_of(number: int, segments: Sequence[dict[str, Any]]) -> DeviceSnapshot:
    """A device's state at the end, without its events."""
    return _device(number, (), segments)


def events_of(trace: Iterable[dict[str, Any]]) -> list[Event]:
    """The events of a device's trace, in its order, without entries that are no events of memory."""
    return [event for entry in trace if (event := event_of(entry)) is not None]


def event_of(entry: dict[str, Any]) -> Event | None:
    """One entry as an event; None for an action that is none (``annotate``, or a later version's)."""
    action = ACTION_OF_NAME.get(entry["action"])
    if action is None:
        return None
    time_us, free_bytes = entry.get("time_us"), entry.get("device_free")
    return Event(
        action=action,
        address=int(entry.get("addr", 0)) & _U64_MASK,
        size_bytes=int(entry["size"]),
        stream=int(entry["stream"]) & _U64_MASK,
        pool=packed_pool(entry.get("pool_id") or entry.get("segment_pool_id")),
        time_us=None if time_us is None else int(time_us),
        device_free_bytes=None if free_bytes is None else int(free_bytes),
        frames=entry.get("frames") or (),
    )


def with_pools(events: list[Event], segments: Sequence[Segment]) -> list[Event]:
    """The events with their private pools, which a trace does not tell, from the segments at its end."""
    if any(event.pool for event in events):
        return events
    moves = ((event.action, event.address, event.size_bytes) for event in events)
    found = private_pools(moves, ranges_of(segments))
    return [
        event._replace(pool=found[place]) if place in found else event for place, event in enumerate(events)
    ]


def pools_of(entries: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]]) -> dict[int, int]:
    """The private pools of a trace's entries, by place, packed: as they say, else as the segments do."""
    told = {
        place: packed_pool(pool_id)
        for place, entry in enumerate(entries)
        if (pool_id := entry.get("pool_id") or entry.get("segment_pool_id")) and tuple(pool_id) != (0, 0)
    }
    if told:
        return told
    events = (
        (
            ACTION_OF_NAME.get(entry["action"], Action.SNAPSHOT),
            entry.get("addr", 0) & _U64_MASK,
            entry["size"],
        )
        for entry in entries
    )
    return private_pools(events, ranges_of(segments_of(segments)))


def segments_of(segments: Iterable[dict[str, Any]]) -> list[Segment]:
    """The segments of a snapshot."""
    return [
        Segment(
            address=int(segment["address"]) & _U64_MASK,
            size_bytes=_size(segment["total_size"]),
            stream=int(segment["stream"]) & _U64_MASK,
            pool=packed_pool(segment.get("segment_pool_id")),
        )
        for segment in segments
    ]


def ranges_of(segments: Iterable[Segment]) -> list[tuple[int, int, int]]:
    """Address, bytes and pool of each."""
    return [(each.address, each.size_bytes, each.pool) for each in segments]


def count_unknown_pools(trace: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]]) -> int:
    """Of how many segments nothing tells the private pool: those given back before the end, unless the trace
    tells pools, and all of torch 2.0."""
    is_told = any("pool_id" in entry or "segment_pool_id" in entry for entry in trace)
    gone = 0 if is_told else sum(ACTION_OF_NAME.get(entry["action"]) in LOSES for entry in trace)
    return gone + sum("segment_pool_id" not in segment for segment in segments)


def packed_pool(pool_id: Sequence[int] | None) -> int:
    """A pool's id as records carry it: first << 32 | second."""
    if not pool_id:
        return 0
    return (int(pool_id[0]) << 32 | int(pool_id[1]) & 0xFFFF_FFFF) & _U64_MASK


def baseline(device: DeviceSnapshot) -> MemoryState:
    """The memory alive just before the first event of the trace."""
    state = MemoryState(
        blocks=dict(device.blocks), segments={segment.address: segment for segment in device.segments}
    )
    for event in reversed(device.events):
        _undo(state, event)
    return state


def replay(state: MemoryState, events: Iterable[Event]) -> MemoryState:
    """The state after the events, in place; what does not fit is counted as residue."""
    for event in events:
        _apply(state, event)
    return state


def _device(
    number: int, trace: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]]
) -> DeviceSnapshot:
    blocks: dict[int, Block] = {}
    for segment in segments:
        blocks.update((block.address, block) for block in _blocks(segment))
    held = segments_of(segments)
    return DeviceSnapshot(
        device_index=number,
        events=with_pools(events_of(trace), held),
        blocks=blocks,
        segments=held,
        num_unknown_pools=count_unknown_pools(trace, segments),
    )


def _blocks(segment: dict[str, Any]) -> Iterable[Block]:
    """The blocks of a segment that are not free; addresses follow from the sizes where they are not
    recorded."""
    address = int(segment["address"])
    for block in segment["blocks"]:
        size_bytes, state = _size(block["size"]), block["state"]
        if state != "inactive":
            history: Sequence[dict[str, Any]] = block.get("history") or ({},)  # torch 2.0: newest first
            yield Block(
                address=address & _U64_MASK,
                requested_bytes=_size(
                    block.get("requested_size") or history[0].get("real_size") or size_bytes
                ),
                stream=int(segment["stream"]) & _U64_MASK,
                pool=packed_pool(segment.get("segment_pool_id")),
                awaiting_free=state != "active_allocated",
                frames=block.get("frames") or history[0].get("frames") or (),
                block_bytes=size_bytes,
            )
        address += size_bytes


def _size(value: Any) -> int:
    size_bytes = int(value)
    if not isinstance(value, int):
        raise TypeError(f"a size is a {type(value).__name__}")
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise ValueError(f"{size_bytes} bytes, which no device has")
    return size_bytes


def _block_of(event: Event, *, awaiting_free: bool) -> Block:
    return Block(event.address, event.size_bytes, event.stream, event.pool, awaiting_free, event.frames)


def _undo(state: MemoryState, event: Event) -> None:
    """The state before the event, from that after it."""
    if event.action is Action.ALLOC:
        state.residue += state.blocks.pop(event.address, None) is None
    elif event.action is Action.FREE_COMPLETED:
        state.residue += event.address in state.blocks
        # Its frames are those of the free; where it was made is not known.
        state.blocks[event.address] = _block_of(event, awaiting_free=True)._replace(frames=())
    elif event.action is Action.FREE_REQUESTED:
        block = state.blocks.get(event.address)
        state.residue += block is None
        if block is not None:
            state.blocks[event.address] = block._replace(awaiting_free=False)
    else:
        _move_segment(state, event, forward=False)


def _apply(state: MemoryState, event: Event) -> None:
    """The state after the event, from that before it."""
    if event.action is Action.ALLOC:
        state.residue += event.address in state.blocks
        state.blocks[event.address] = _block_of(event, awaiting_free=False)
    elif event.action is Action.FREE_COMPLETED:
        state.residue += state.blocks.pop(event.address, None) is None
    elif event.action is Action.FREE_REQUESTED:
        block = state.blocks.get(event.address)
        state.residue += block is None
        if block is not None:
            state.blocks[event.address] = block._replace(awaiting_free=True)
    else:
        _move_segment(state, event, forward=True)


def _move_segment(state: MemoryState, event: Event, *, forward: bool) -> None:
    if event.action not in GAINS and event.action not in LOSES:
        return  # oom, snapshot
    if (event.action in GAINS) is forward:
        _map(state, Segment(event.address, event.size_bytes, event.stream, event.pool))
    elif not _unmap(state, event.address, event.size_bytes):
        state.residue += 1


def _map(state: MemoryState, segment: Segment) -> None:
    state.residue += segment.address in state.segments
    state.segments[segment.address] = segment


def _unmap(state: MemoryState, address: int, size_bytes: int) -> bool:
    """Take a range off the segments. It may be part of one (expandable segments are mapped piecewise and
    listed whole), or span several; False if some of it is in none."""
    end, found = address + size_bytes, 0
    whole = state.segments.get(address)
    if whole is not None and whole.size_bytes == size_bytes:
        del state.segments[address]
        return True
    for segment in list(state.segments.values()):
        segment_end = segment.address + segment.size_bytes
        begin, stop = max(address, segment.address), min(end, segment_end)
        if begin >= stop:
            continue
        found += stop - begin
        del state.segments[segment.address]
        if segment.address < begin:
            state.segments[segment.address] = segment._replace(size_bytes=begin - segment.address)
        if stop < segment_end:
            state.segments[stop] = segment._replace(address=stop, size_bytes=segment_end - stop)
    return found == size_bytes
