"""A device's segments at an instant, with the blocks and holes in them.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.address_space import address_text, address_texts
from rankmem_aggregator.page.device_state import DeviceLog, State
from rankmem_aggregator.page.lives import named_if_older
from rankmem_aggregator.page.parameters import DEVICE, RANK, SEQ, parameter
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.page.routes import SessionRoute

PARTS_MAX: Final = 20_000
"""Blocks and holes that are sent; the smallest are left out, and the answer says how many."""
SEGMENTS_MAX: Final = 5_000
"""Segments that are sent, the largest first."""
BLOCK, PENDING, HOLE = 0, 1, 2
"""Kinds of parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsAsked:
    """Parameters of ``/segments``."""

    rank: int = parameter(RANK, "global rank")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)
    seq: int | None = parameter(
        SEQ, "the instant: right after this event; absent: the rank's peak", default=None
    )


def segments(reading: Reading, asked: SegmentsAsked) -> pa.Table:
    """What is in the segments of a device right after an event: blocks and holes, by segment and address.

    Columns: segment (its place in the fact ``segments``), kind (0 block, 1 a block whose tensor is freed
    while a stream may still use it, 2 hole), offset_bytes (from the segment's begin), size_bytes (as it takes
    room), requested_bytes, unsplit_bytes (of its size: a rest too small to be split off), block (its id),
    category, operator, line, address (text). Facts: the figures of ``oom_overview`` (unused_bytes,
    largest_free_bytes, fragmentation) and others of the device, ``pools`` (of each pool and stream), and
    ``segments``.
    """
    track = reading.track(asked.rank, asked.attempt, asked.device)
    seq = track.peak_seq if asked.seq is None else asked.seq
    log = DeviceLog(state_rows(reading, track, [seq], None), track.device)
    state = log.state_after(seq)
    parts, left_out = _parts(state, log)
    return reading.answer(
        parts,
        exact=left_out == 0,
        source="allocation_record, memory_event, older_segment",
        rank=track.rank,
        attempt=track.attempt,
        device=track.device,
        host_name=track.host_name,
        seq=seq,
        is_peak=seq == track.peak_seq,
        knows_segments=log.knows_segments,
        num_without_address=log.num_without_address,
        parts_left_out=left_out,
        **_figures(state, log),
        pools=_pools(state, log),
        segments=_lines(state, log),
    )


def state_rows(reading: Reading, track: Track, seqs: list[int], at_most: int | None) -> pa.Table:
    """The rows of ``device_state.sql`` for these events, in order; None: all of them."""
    return reading.show(
        "device_state",
        **device_of(track),
        instants=json.dumps(seqs),
        seq_first=seqs[0] if seqs else -1,
        seq_last=seqs[-1] if seqs else -1,
        at_most=at_most,
    )


def device_of(track: Track) -> dict[str, Any]:
    """The parameters that name the device."""
    return {"attempt": track.attempt, "rank": track.rank, "device": track.device}


def _parts(state: State, log: DeviceLog) -> tuple[pa.Table, int]:
    """Blocks and holes, the largest of them, by segment and address; and how many are left out."""
    holes = state.holes
    unsplit = np.zeros(len(state.block), np.int64)
    is_rest = holes.owner >= 0
    unsplit[holes.owner[is_rest]] = holes.size_bytes[is_rest]
    shown = np.flatnonzero(~is_rest)
    num_blocks = len(state.block)
    segment = np.concatenate([state.segment, holes.segment[shown]])
    offset = np.concatenate([state.offset, holes.offset[shown]])
    size = np.concatenate([state.rounded_bytes + unsplit, holes.size_bytes[shown]])
    kind = np.concatenate([np.where(state.pending, PENDING, BLOCK), np.full(len(shown), HOLE)]).astype(
        np.int8
    )
    order = np.arange(len(size))
    if len(order) > PARTS_MAX:
        order = np.argsort(-size, kind="stable")[:PARTS_MAX]
    order = order[np.lexsort((offset[order], segment[order]))]
    is_block = order < num_blocks
    place = pa.array(np.where(is_block, np.append(state.block, [0] * len(shown))[order], -1), pa.int64())
    place = pc.if_else(pa.array(is_block), place, pa.scalar(None, pa.int64()))
    rows = log.blocks.combine_chunks().take(place)
    begins = np.array([each.address for each in state.segments], np.int64)[segment[order]]
    found = pa.table(
        {
            "segment": pa.array(segment[order], pa.int32()),
            "kind": pa.array(kind[order]),
            "offset_bytes": pa.array(offset[order]),
            "size_bytes": pa.array(size[order]),
            "requested_bytes": rows["size_bytes"],
            "unsplit_bytes": pa.array(np.append(unsplit, np.zeros(len(shown), np.int64))[order]),
            "block": rows["seq"],
            **{
                name: named_if_older(rows[name].combine_chunks(), rows["seq"].combine_chunks())
                for name in ("category", "operator", "line")
            },
            "address": pa.array(address_texts((begins + offset[order]).tolist()), pa.string()),
        }
    )
    return found, len(size) - len(order)


def _figures(state: State, log: DeviceLog) -> dict[str, Any]:
    requested = log.blocks["size_bytes"].to_numpy()[state.block]
    unplaced = log.bytes_without_address
    is_known = state.segment < len(state.segments) - state.num_covers
    knows = log.knows_segments
    return {
        "reserved_bytes": state.reserved_bytes if knows else None,
        "requested_bytes": int(requested.sum()) + unplaced,
        "rounding_bytes": int((state.rounded_bytes - requested)[is_known].sum()) if knows else None,
        "pending_bytes": None if unplaced else int(state.rounded_bytes[state.pending].sum()),
        "unused_bytes": state.unused_bytes if knows else None,
        "unsplit_bytes": state.unsplit_bytes if knows else None,
        "largest_free_bytes": state.largest_hole_bytes if knows else None,
        "fragmentation": state.fragmentation if knows else None,
        "empty_bytes": _empty_bytes(state) if knows else None,
        "outside_bytes": int(requested[~is_known].sum()),
        "num_blocks": len(state.block),
        "num_segments": len(state.segments) - state.num_covers,
    }


def _empty_bytes(state: State) -> int:
    """Bytes of segments without any block, which ``torch.cuda.empty_cache()`` would give back."""
    used = set(state.segment.tolist())
    return sum(
        each.size_bytes for i, each in enumerate(state.segments) if not each.is_cover and i not in used
    )


def _pools(state: State, log: DeviceLog) -> list[dict[str, Any]]:
    """Figures of each pool and stream, the largest first."""
    requested = log.blocks["size_bytes"].to_numpy()[state.block]
    size, count = len(state.segments), len(state.segments)
    used = np.bincount(state.segment, weights=state.rounded_bytes, minlength=size)
    asked = np.bincount(state.segment, weights=requested, minlength=size)
    pending = np.bincount(state.segment, weights=state.rounded_bytes * state.pending, minlength=size)
    blocks = np.bincount(state.segment, minlength=size)
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, state.holes.segment, state.holes.size_bytes)
    found: dict[tuple[str | None, int, bool], dict[str, Any]] = defaultdict(
        lambda: dict.fromkeys(
            ("segments", "blocks", "reserved_bytes", "requested_bytes", "used_bytes", "pending_bytes",
             "largest_free_bytes"), 0)
    )  # fmt: skip
    for i, each in enumerate(state.segments):
        row = found[each.pool, each.stream, each.is_cover]
        row["segments"] += 1
        row["blocks"] += int(blocks[i])
        row["reserved_bytes"] += each.size_bytes
        row["requested_bytes"] += int(asked[i])
        row["used_bytes"] += int(used[i])
        row["pending_bytes"] += int(pending[i])
        row["largest_free_bytes"] = max(row["largest_free_bytes"], int(largest[i]))
    rows = [
        {
            "pool": pool,
            "stream": str(stream),
            "is_known": not cover,
            **row,
            "unused_bytes": 0 if cover else row["reserved_bytes"] - row["used_bytes"],
        }
        for (pool, stream, cover), row in found.items()
    ]
    return sorted(rows, key=lambda row: -row["reserved_bytes"])


def _lines(state: State, log: DeviceLog) -> list[dict[str, Any]]:
    """The segments, by address; the smallest are left out where there are too many."""
    sizes = np.array([each.size_bytes for each in state.segments])
    kept = set(np.argsort(-sizes, kind="stable")[:SEGMENTS_MAX].tolist())
    return [
        {
            "segment": i,
            "address": address_text(each.address),
            "size_bytes": each.size_bytes,
            "stream": str(each.stream),
            "pool": each.pool,
            "is_expandable": each.is_expandable,
            "is_known": not each.is_cover,
        }
        for i, each in enumerate(state.segments)
        if i in kept
    ]


ROUTES: Final = (SessionRoute(path="/segments", parameters=SegmentsAsked, answer=segments),)
