"""Decides what to leave out of a trace so that it stays small enough to open.

Stage: export. In: the tracks, with the sizes of their blocks and calls; out: thresholds, and the remarks
that name them. Counters keep their highest value in each bucket of time; of blocks and calls the large ones
stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rankmem_aggregator.exports.contract import Selection
from rankmem_aggregator.exports.log import Track

_ROWS_OF_EVENT: Final = 3
"""Counters that an event changes: the device's, its stream's and its component's."""
_ROWS_OF_BLOCK: Final = 4
"""Its beginning and end, and an arrow."""
_ROWS_OF_CALL: Final = 3
"""The slice, and an arrow."""
_SHARES: Final = {"counters": 0.4, "blocks": 0.3, "calls": 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The thresholds of what is left out."""

    bucket_ns: int = 0
    """The highest and the last value of a counter in each such bucket stay; 0: all."""
    block_bytes: int = 0
    """Smaller blocks are left out."""
    call_bytes: int = 0
    """Calls that allocated less are left out."""
    remarks: list[str] = field(default_factory=list)


def budget_of(selection: Selection, found: list[Track], rows_max: int) -> Budget:
    """The thresholds with which about ``rows_max`` rows of these tracks remain."""
    first_ns, last_ns = min(track.first_ns for track in found), max(track.last_ns for track in found)
    sizes = selection.rows("sizes", from_ns=first_ns, until_ns=last_ns)
    blocks = [(row["size_bytes"], row["num_blocks"]) for row in sizes if row["num_blocks"]]
    calls = [(row["size_bytes"], row["num_calls"]) for row in sizes if row["num_calls"]]
    num_events = sum(track.num_events for track in found)
    rows = num_events * _ROWS_OF_EVENT
    rows += (
        sum(count for _, count in blocks) * _ROWS_OF_BLOCK + sum(count for _, count in calls) * _ROWS_OF_CALL
    )
    if rows <= rows_max:
        return Budget()
    span_ns = sum(max(track.last_ns - track.first_ns, 1) for track in found)
    values = int(rows_max * _SHARES["counters"]) // (2 * _ROWS_OF_EVENT)
    bucket_ns = -(-span_ns // values) if num_events > values else 0
    block_bytes = _threshold(blocks, int(rows_max * _SHARES["blocks"]) // _ROWS_OF_BLOCK)
    call_bytes = _threshold(calls, int(rows_max * _SHARES["calls"]) // _ROWS_OF_CALL)
    remarks = [f"thinned to about {rows_max:,} rows of {rows:,}; a range of time or a rank alone shows more"]
    if bucket_ns:
        remarks.append(f"counters show the highest and the last value of each {bucket_ns / 1e6:g} ms")
    if block_bytes:
        remarks.append(f"blocks under {block_bytes:,} bytes are left out")
    if call_bytes:
        remarks.append(f"operator calls that allocated under {call_bytes:,} bytes are left out")
    return Budget(bucket_ns=bucket_ns, block_bytes=block_bytes, call_bytes=call_bytes, remarks=remarks)


def _threshold(sizes: Iterable[tuple[int, int]], most: int) -> int:
    """The size from which up there are at most ``most``; ``sizes``: (bytes, count), largest first.

    The largest stay where there are up to four times as many.
    """
    total = 0
    for size_bytes, count in sizes:
        first, total = total == 0, total + count
        if total > most and not (first and total <= 4 * most):
            return size_bytes + 1
    return 0
