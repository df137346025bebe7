"""Points: the records that concern a device's totals, and the totals after each.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's events, older blocks and
segments (PREEXISTING) and the allocator's own figures (COUNTERS, PEAKS), in log order. Out: for each the
bytes it adds, the block it is about, and the device's totals after it.

requested and reserved are replayed, exact to the event. allocated and active are the allocator's own,
as of the last COUNTERS record at or before the point: known to the call, not to the event. Where these move,
they are replayed from there, exact to the event: each changes them by its size rounded up to 512 bytes and
what the ROUNDING before it says.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import UNKNOWN, Action, Kind
from rankmem_ship.pairing.blocks import match_blocks
from rankmem_ship.pairing.devices import block_keys, dense_numbers, device_codes
from rankmem_ship.pairing.state import ABSENT, Array, rows_at
from rankmem_ship.spool_reader.segments import named

_HAS_FIGURES: Final = np.zeros(256, np.bool_)
_HAS_FIGURES[[Kind.COUNTERS, Kind.PEAKS, Kind.ROUNDING]] = True
_IS_POINT: Final = _HAS_FIGURES.copy()
_IS_POINT[[Kind.EVENT, Kind.PREEXISTING]] = True
_ROUND_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Columns of equal length, in log order."""

    seq: Array
    time_ns: Array
    is_event: Array
    """False for PREEXISTING, COUNTERS, PEAKS and ROUNDING."""
    is_counters: Array
    moves: Array
    """COUNTERS whose figures the events after them change."""
    is_peaks: Array
    is_rounding: Array
    action: Array
    device: Array
    """Dense number, see devices."""
    address: Array
    size: Array
    """Bytes of the block where one is known, else as recorded."""
    stream: Array
    pool: Array
    call_id: Array
    thread: Array
    stack: Array
    """String-table id of the event's own stack, 0 for none: those of foreign recordings, and allocs outside
    of calls."""
    block: Array
    """Number of the block (see blocks.Matches) or ABSENT."""
    makes_block: Array
    """An alloc, or an older block that counts."""
    implied_free: Array
    """Block that this alloc shows to be gone, or ABSENT."""
    figures: Array
    """int64 (n, 4): allocated, active, reserved, requested of COUNTERS and PEAKS; of ROUNDING two of them."""

    @property
    def unplaced(self) -> Array:
        """Without an address, as some foreign recordings have them: bytes that come and go, and no block."""
        unplaced: Array = self.address == ABSENT
        return unplaced

    @property
    def allocates(self) -> Array:
        """Events that make a block, or bytes without one."""
        unattributed = self.is_event & self.unplaced & (self.action == Action.ALLOC)
        allocates: Array = (self.makes_block & self.is_event) | unattributed
        return allocates


def points_of(live: Array, devices: Array, records: Array, seq: Array, time_ns: Array) -> Points:
    """The points of a batch, with their blocks found; ``live`` are the blocks alive before it."""
    rows = np.flatnonzero(_IS_POINT[records["kind"]])
    own = named(rows_at(records, rows), Kind.EVENT)
    kind, action = own["kind"], own["action"]
    device = dense_numbers(devices, device_codes(own))
    address = own["address"]
    in_log = (kind == Kind.EVENT) | (kind == Kind.PREEXISTING)
    is_block = in_log & (action <= Action.FREE_COMPLETED) & (address != UNKNOWN)
    keys = block_keys(device, address)
    ignored = _ignored_preexisting(live, keys, kind, action, is_block)
    is_block &= ~ignored
    block, implied = _blocks(live, keys, action, is_block)
    makes_block = is_block & (action == Action.ALLOC)
    return Points(
        seq=seq[rows],
        time_ns=time_ns[rows],
        is_event=kind == Kind.EVENT,
        is_counters=kind == Kind.COUNTERS,
        moves=(kind == Kind.COUNTERS) & (named(own, Kind.COUNTERS)["moves"] == 1),
        is_peaks=kind == Kind.PEAKS,
        is_rounding=kind == Kind.ROUNDING,
        action=action.astype(np.int16),
        device=device,
        address=address.astype(np.int64),
        size=np.where(in_log & ~ignored, own["size_bytes"], 0).astype(np.int64),
        stream=own["stream"].astype(np.int64),
        pool=own["pool"],
        # An older block is of no call: its record has its size there.
        call_id=np.where(kind == Kind.PREEXISTING, 0, own["call_id"]).astype(np.int64),
        thread=own["thread"].astype(np.int32),
        stack=np.where(in_log, own["stack_id"], 0).astype(np.uint32),
        block=block,
        makes_block=makes_block,
        implied_free=implied,
        figures=_figures(own, kind),
    )


def _figures(own: Array, kind: Array) -> Array:
    if not _HAS_FIGURES[kind].any():  # never on CPU
        return np.broadcast_to(np.zeros(4, np.int64), (len(own), 4))
    figures = named(own, Kind.COUNTERS)
    columns = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
    return np.stack([figures[column] for column in columns], axis=1).astype(np.int64)


def _blocks(live: Array, keys: Array, action: Array, is_block: Array) -> tuple[Array, Array]:
    at = np.flatnonzero(is_block)
    matches = match_blocks(
        live["key"], keys[at], action[at] == Action.ALLOC, action[at] == Action.FREE_COMPLETED
    )
    block = np.full(len(keys), ABSENT)
    implied = np.full(len(keys), ABSENT)
    block[at] = matches.block
    implied[at] = matches.implied_free
    return block, implied


def _ignored_preexisting(live: Array, keys: Array, kind: Array, action: Array, is_block: Array) -> Array:
    """Older blocks that the log knows already: made between the tap's attaching and its snapshot.

    Counted or not, an older block leaves its address alive; so whether the next one counts does not depend
    on whether this one did, and one matching with all of them taken as allocs shows it.
    """
    ignored = np.zeros(len(keys), np.bool_)
    older = is_block & (kind == Kind.PREEXISTING)
    if older.any():
        _, implied = _blocks(live, keys, action, is_block)
        ignored = older & (implied != ABSENT)
    return ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Bytes on the point's device after the point."""

    requested: Array
    reserved: Array
    allocated: Array
    """As of the last COUNTERS, or replayed from there; ABSENT before the first; likewise active."""
    active: Array
    allocated_risen: Array
    """At PEAKS that rose: the peak, for the highest in a time; else ABSENT; likewise active."""
    active_risen: Array


def totals_of(points: Points, block_sizes: Array, devices: Array, *, carries: bool) -> tuple[Totals, Array]:
    """The totals after each point, and the devices as they stand after the last.

    Args:
        block_sizes: bytes of each block, by its number.
        devices: DEVICE_DTYPE, before the batch.
        carries: the last COUNTERS hold until the next: calls are observed, at whose ends they come.
    """
    change, reserved_change = _changes(points, block_sizes)
    columns = {name: np.full(len(points.seq), ABSENT) for name in Totals.__dataclass_fields__}
    after = devices.copy()
    for number, at in _by_device(points.device):
        row = after[number]
        columns["requested"][at] = _held(int(row["requested"]), change[at])
        columns["reserved"][at] = _held(int(row["reserved"]), reserved_change[at])
        counters, peaks = points.is_counters[at], points.is_peaks[at]
        moving = _carried_on(points.moves[at], counters, bool(row["moves"]))
        row["moves"] = moving[-1]
        for name, place in (("allocated", 0), ("active", 1)):
            figure = points.figures[at, place]
            carried = _carried_on(figure, counters, int(row[name]))
            if moving.any():
                carried = _moved(carried, np.where(moving, _rounded_change(points, place)[at], 0), counters)
            columns[name][at] = carried if carries else np.where(counters, figure, ABSENT)
            top = _carried_on(figure, peaks, int(row[f"{name}_top"]))
            before = np.concatenate([[int(row[f"{name}_top"])], top[:-1]])
            columns[f"{name}_risen"][at] = np.where(peaks & (before != ABSENT) & (top > before), top, ABSENT)
            row[f"{name}_top"] = top[-1]
        _compare(row, points, at, columns["requested"][at])
        for name in ("requested", "reserved", "allocated", "active"):
            row[name] = columns[name][at][-1]
        if not carries:
            row["allocated"] = row["active"] = ABSENT
    return Totals(**columns), after


def _by_device(device: Array) -> list[tuple[int, Array | slice]]:
    """Each device's number and the indices of its points; without a copy where there is but one."""
    numbers = np.flatnonzero(np.bincount(device)).tolist() if len(device) else []
    if len(numbers) == 1:
        return [(numbers[0], slice(None))]
    return [(number, np.flatnonzero(device == number)) for number in numbers]


def _changes(points: Points, block_sizes: Array) -> tuple[Array, Array]:
    """What each point adds to requested and to reserved."""
    change = np.where(points.makes_block, points.size, 0)
    freed = np.flatnonzero((points.action == Action.FREE_COMPLETED) & (points.block != ABSENT))
    change[freed] = -block_sizes[points.block[freed]]
    implied = np.flatnonzero(points.implied_free != ABSENT)
    change[implied] -= block_sizes[points.implied_free[implied]]
    if (unplaced := points.unplaced).any():
        change += np.where(unplaced & (points.action == Action.ALLOC), points.size, 0)
        change -= np.where(unplaced & (points.action == Action.FREE_COMPLETED), points.size, 0)
    figure = points.is_counters | points.is_peaks
    more = (points.action == Action.SEGMENT_ALLOC) | (points.action == Action.SEGMENT_MAP)
    less = (points.action == Action.SEGMENT_FREE) | (points.action == Action.SEGMENT_UNMAP)
    if not (more | less).any():
        return change, np.zeros(len(change), np.int64)
    reserved = np.where(more & ~figure, points.size, 0) - np.where(less & ~figure, points.size, 0)
    return change, reserved


def _held(before: int, change: Array) -> Array:
    """The running total, at least 0: what is given back beyond that was taken in records that are missing, of
    which a gap records. A total below 0 the aggregator would refuse, with all that follows."""
    total = before + np.cumsum(change)
    missing = np.minimum(np.minimum.accumulate(total), 0)
    held: Array = total - missing
    return held


def _carried_on(values: Array, known: Array, before: int) -> Array:
    """At each place the last known value, ``before`` where none came yet."""
    if not known.any():
        return np.full(len(values), before)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    carried: Array = np.where(last >= 0, values[last], before)
    return carried


def _rounded_change(points: Points, place: int) -> Array:
    """What each point adds to allocated (place 0) or active (1), where these are replayed."""
    freed = Action.FREE_REQUESTED if place == 0 else Action.FREE_COMPLETED
    rounded = np.maximum(-(-points.size // _ROUND_BYTES), 1) * _ROUND_BYTES
    sign = (points.action == Action.ALLOC).astype(np.int64) - (points.action == freed)
    change: Array = np.where(points.is_event, sign * rounded, 0)
    return np.where(points.is_rounding, points.figures[:, place], change)


def _moved(carried: Array, change: Array, counters: Array) -> Array:
    """The figures of the last COUNTERS, moved by what changed after it; ABSENT where those are."""
    moved = np.full(len(carried), ABSENT)
    begins = np.flatnonzero(counters | (np.arange(len(counters)) == 0)).tolist()
    for begin, end in itertools.pairwise([*begins, len(counters)]):
        if carried[begin] != ABSENT:
            since = np.where(counters[begin:end], 0, change[begin:end])
            moved[begin:end] = _held(int(carried[begin]), since)
    return moved


def _compare(row: Array, points: Points, at: Array | slice, requested: Array) -> None:
    """Hold the replay against the allocator's own figure where nothing can lie between the two.

    COUNTERS are read off the allocator's lock, so another thread's event may slip in. The figure counts
    where the device's last event before it is of the same call.
    """
    event = points.is_event[at]
    calls = points.call_id[at]
    last_call = _carried_on(calls, event, int(row["last_call"]))
    figure_is_known = points.figures[at][:, 3] != ABSENT
    still = np.flatnonzero(points.is_counters[at] & figure_is_known & (last_call == calls))
    if len(still):
        row["unexplained"] = requested[still[-1]] - points.figures[at][still[-1], 3]
    row["last_call"] = last_call[-1]
