"""Arrow in and out of the summaries' arithmetic: blocks as changes of groups, buckets as rows.

Stage: summaries, in the writer's thread; pure functions over Arrow tables of ``sql/summaries``. A track is a
device of a rank, numbered from 0; a curve is a group on a track: ``track * num_groups + group``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.summaries.curves import Array, Buckets, buckets_of
from rankmem_protos.groupings import SUMMARIZED

NEVER: Final = int(np.iinfo(np.int64).max)
_ID_BITS: Final = 45
"""An allocation_id is between -2**44 and 2**44: fifty years at 10,000 records a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks alive in the range of a pass, by the rank's number and allocation_id."""

    rows: pa.Table
    """Columns of ``made.sql``."""
    number: Array
    """The rank's number in the pass; likewise of each block what follows."""
    is_new: Array
    """Allocated in the range; the others are alive when it begins."""
    seq: Array
    """Of its alloc; -1 for a block older than the recording."""
    freed_seq: Array
    """int64's highest where it is still alive after the range."""
    freed_ns: Array
    size_bytes: Array

    def place(self, number: Array, allocation_id: Array) -> Array:
        """Index of each of these blocks, -1 where it is not here."""
        keys, wanted = _keys(self.number, ints(self.rows, "allocation_id")), _keys(number, allocation_id)
        if not len(keys):
            return np.full(len(wanted), -1)
        near = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[near] == wanted, near, -1)


def blocks_of(rows: pa.Table, ending: pa.Table, seq_from: Array, seq_upto: Array) -> Blocks:
    """The blocks with their ends.

    Args:
        rows: of ``made.sql``, and those carried on; in any order.
        ending: of ``ending.sql``.
        seq_from, seq_upto: of each number, where the range begins and ends.
    """
    order = np.argsort(_keys(ints(rows, "number"), ints(rows, "allocation_id")), kind="stable")
    rows = rows.take(pa.array(order))
    number, allocation_id = ints(rows, "number"), ints(rows, "allocation_id")
    freed_seq = ints(rows, "freed_seq", missing=NEVER).copy()
    freed_ns = ints(rows, "freed_ns").copy()
    blocks = Blocks(
        rows=rows,
        number=number,
        is_new=allocation_id > seq_from[number],
        seq=np.maximum(allocation_id, -1),
        freed_seq=freed_seq,
        freed_ns=freed_ns,
        size_bytes=ints(rows, "size_bytes"),
    )
    place = blocks.place(ints(ending, "number"), ints(ending, "allocation_id"))
    found = np.flatnonzero(place >= 0)
    freed_seq[place[found]] = ints(ending, "freed_seq")[found]
    freed_ns[place[found]] = ints(ending, "freed_ns")[found]
    freed_seq[freed_seq > seq_upto[number]] = NEVER
    return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """What blocks add to and take from groups; a block may have several."""

    block: Array
    """Index of the block; likewise of each change what follows."""
    change_bytes: Array
    seq: Array
    time_ns: Array

    def in_order(self) -> tuple[_Changes, Array]:
        """In order of the log, and the order."""
        order = np.argsort(self.seq, kind="stable")
        columns = {name: getattr(self, name)[order] for name in self.__dataclass_fields__}
        return _Changes(**columns), order


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRows:
    """The rows that a pass writes."""

    buckets: list[pa.Table]
    """Rows of group_bucket, a table for each grouping."""
    totals: pa.Table
    """Rows of group_total."""
    categories: pa.Array
    """Category of each block at the end."""


def group_rows(due: pa.Table, blocks: Blocks, turns: pa.Table) -> PassRows:
    """The rows of a pass.

    Args:
        due: the pass's ranks, by number.
        turns: of ``turn.sql``.
    """
    tracks = _tracks_of(blocks)
    changes, _ = _allocs_and_frees(blocks).in_order()
    found: list[pa.Table] = []
    single: Buckets | None = None
    for by in SUMMARIZED:
        if by == "category":  # whose blocks turn from one group to another: below
            continue
        names, (group,) = _codes_of(blocks.rows[by])
        if len(names) == 1:  # as a rule: one stream, one component; then they all have the same curve
            single = single or _buckets(blocks, tracks, changes, 1, group, group[changes.block])
            buckets = single
        else:
            buckets = _buckets(blocks, tracks, changes, len(names), group, group[changes.block])
        found.append(_bucket_rows(due, tracks, by, names, buckets))
    names, buckets, last = _categories(blocks, tracks, turns)
    found.append(_bucket_rows(due, tracks, "category", names, buckets))
    return PassRows(
        buckets=found,
        totals=_total_rows(due, blocks, tracks, names, last),
        categories=names.take(pa.array(last)),
    )


def ints(table: pa.Table, name: str, *, missing: int = 0) -> Array:
    """A column as int64."""
    column = table[name]
    if column.null_count:
        column = pc.fill_null(column, missing)
    values: Array = column.to_numpy().astype(np.int64, copy=False)
    return values


def _allocs_and_frees(blocks: Blocks) -> _Changes:
    begun, ended = np.flatnonzero(blocks.is_new), np.flatnonzero(blocks.freed_seq != NEVER)
    allocated_ns = ints(blocks.rows, "allocated_ns")
    return _Changes(
        block=np.concatenate([begun, ended]),
        change_bytes=np.concatenate([blocks.size_bytes[begun], -blocks.size_bytes[ended]]),
        seq=np.concatenate([blocks.seq[begun], blocks.freed_seq[ended]]),
        time_ns=np.concatenate([allocated_ns[begun], blocks.freed_ns[ended]]),
    )


def _categories(blocks: Blocks, tracks: _Tracks, turns: pa.Table) -> tuple[pa.Array, Buckets, Array]:
    """(names, buckets, category of each block at the end); a block that changes leaves one, joins another."""
    place = blocks.place(ints(turns, "number"), ints(turns, "allocation_id"))
    alive = ints(turns, "seq") < np.append(blocks.freed_seq, 0)[place]
    kept = np.flatnonzero((place >= 0) & alive)
    place, turns = place[kept], turns.take(pa.array(kept))
    names, (first, joined) = _codes_of(blocks.rows["category"], turns["category"])
    is_first = np.diff(place, prepend=-1) != 0
    left = np.where(is_first, first[place], np.roll(joined, 1)) if len(place) else joined
    last = first.copy()
    is_last = np.append(is_first[1:], True)[: len(place)]
    last[place[is_last]] = joined[is_last]
    plain, size = _allocs_and_frees(blocks), blocks.size_bytes[place]
    begun = int(blocks.is_new.sum())
    group = np.concatenate([first[plain.block[:begun]], last[plain.block[begun:]], left, joined])
    seq, time_ns = np.maximum(ints(turns, "seq"), blocks.seq[place]), ints(turns, "time_ns")
    changes, order = _Changes(
        block=np.concatenate([plain.block, place, place]),
        change_bytes=np.concatenate([plain.change_bytes, -size, size]),
        seq=np.concatenate([plain.seq, seq, seq]),
        time_ns=np.concatenate([plain.time_ns, time_ns, time_ns]),
    ).in_order()
    return names, _buckets(blocks, tracks, changes, len(names), first, group[order]), last


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tracks:
    """Devices of ranks, numbered."""

    number: Array
    """Of each, its rank's number in the pass."""
    device: pa.Array
    of_block: Array
    """Of each block, its track."""


def _tracks_of(blocks: Blocks) -> _Tracks:
    devices, (code,) = _codes_of(blocks.rows["device"])
    keys, of_block = np.unique(blocks.number * len(devices) + code, return_inverse=True)
    return _Tracks(
        number=keys // len(devices), device=devices.take(pa.array(keys % len(devices))), of_block=of_block
    )


def _buckets(
    blocks: Blocks, tracks: _Tracks, changes: _Changes, num_groups: int, first: Array, group: Array
) -> Buckets:
    """The buckets of each curve.

    Args:
        first: of each block, its group where the range begins.
        group: of each change.
    """
    entry = np.zeros(len(tracks.number) * num_groups, np.int64)
    there = np.flatnonzero(~blocks.is_new)
    np.add.at(entry, tracks.of_block[there] * num_groups + first[there], blocks.size_bytes[there])
    curve = tracks.of_block[changes.block] * num_groups + group
    if len(entry) <= 1 << 16:  # numpy sorts 16 bits by radix, eight times faster
        curve = curve.astype(np.uint16)
    return buckets_of(curve, changes.seq, changes.time_ns, changes.change_bytes, entry)


def _bucket_rows(due: pa.Table, tracks: _Tracks, by: str, names: pa.Array, found: Buckets) -> pa.Table:
    curve = found.curve.astype(np.int64)
    track, group = curve // len(names), curve % len(names)
    number = pa.array(tracks.number[track])
    return pa.table(
        {name: due[name].take(number) for name in ("session_id", "attempt", "rank")}
        | {
            "device": tracks.device.take(pa.array(track)),
            "group_by": pa.repeat(pa.scalar(by), len(track)),
            "group_name": names.take(pa.array(group)),
            "seq_first": pa.array(found.seq_first),
            "seq_last": pa.array(found.seq_last),
            "peak_bytes": pa.array(found.peak_bytes),
            "peak_seq": pa.array(found.peak_seq),
            "peak_ns": pa.array(found.peak_ns, mask=found.peak_seq < 0),
            "last_bytes": pa.array(found.last_bytes),
            "last_ns": pa.array(found.last_ns, mask=found.seq_last < 0),
        }
    )


def _total_rows(due: pa.Table, blocks: Blocks, tracks: _Tracks, names: pa.Array, last: Array) -> pa.Table:
    """Rows of group_total by the last category of blocks: of those that ended, or whose log has."""
    over = (blocks.freed_seq != NEVER) | due["final"].to_numpy()[blocks.number]
    counted = over & ~blocks.rows["preexisting"].to_numpy()
    curve = tracks.of_block * len(names) + last
    sums, counts, largest = (np.zeros(len(tracks.number) * len(names), np.int64) for _ in range(3))
    np.add.at(sums, curve[counted], blocks.size_bytes[counted])
    np.add.at(counts, curve[counted], 1)
    np.maximum.at(largest, curve[over], blocks.size_bytes[over])
    present = np.unique(curve[over])
    number = pa.array(tracks.number[present // len(names)])
    return pa.table(
        {name: due[name].take(number) for name in ("session_id", "attempt", "rank")}
        | {
            "device": tracks.device.take(pa.array(present // len(names))),
            "group_by": pa.repeat(pa.scalar("category"), len(present)),
            "group_name": names.take(pa.array(present % len(names))),
            "seq_last": due["seq_upto"].take(number),
            "allocated_bytes": pa.array(sums[present]),
            "num_allocations": pa.array(counts[present]),
            "largest_bytes": pa.array(largest[present]),
        }
    )


def _codes_of(*columns: pa.ChunkedArray) -> tuple[pa.Array, list[Array]]:
    """The names in all columns together, NULL among them, and for each column each row's number of a name."""
    chunks = [chunk for column in columns for chunk in column.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return encoded.dictionary, np.split(codes, np.cumsum([len(column) for column in columns])[:-1])


def _keys(number: Array, allocation_id: Array) -> Array:
    keys: Array = (number << _ID_BITS) + allocation_id + (1 << (_ID_BITS - 1))
    return keys
