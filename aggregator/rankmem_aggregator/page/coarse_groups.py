"""Groups of a device's blocks from the summaries, for ranges with more blocks than can be read.

Stage: page, in the thread of a request. A summary has what each group held at the end of each range of 1,024
positions of the log, and its highest in between, though not that of all groups at one instant. So a row of a
curve shows the groups at the last such end in it; where such a range is longer than two rows nothing is
shown, since a rectangle from one end to the next would be made up.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rankmem_aggregator.page.columns import UNKNOWN, Columns, Integers
from rankmem_aggregator.page.reading import Reading, Track

SUMMARISED: Final = ("category", "phase", "stream", "component")
"""What group_bucket is grouped by."""
STRETCH_SEQS: Final = 1024
"""Positions of the log in a range of the summaries; see the table group_bucket."""


def from_summaries(
    reading: Reading, track: Track, by: str, columns: Columns
) -> tuple[list[str | None], Integers, npt.NDArray[np.bool_]]:
    """The groups' names, what each held in each row, and in which rows that is known."""
    last_seq = columns.last_seq
    known_seqs = last_seq[last_seq != UNKNOWN]
    rows = reading.show(
        "group_stretches",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        by=by,
        last_seq=int(known_seqs.max()) if len(known_seqs) else 0,
    )
    names = list(dict.fromkeys(rows["group_name"].to_pylist()))
    if not names:
        return [], np.zeros((0, len(last_seq)), np.int64), np.zeros(len(last_seq), np.bool_)
    entry_seq = -1 if columns.life.entry_seq is None else columns.life.entry_seq
    ends = ends_of(last_seq, entry_seq, int(rows["summarised_seq"][0].as_py()))
    group = np.array([names.index(name) for name in rows["group_name"].to_pylist()])
    seq, held_bytes = rows["seq"].to_numpy(), rows["bytes"].to_numpy()
    held = np.zeros((len(names), len(last_seq)), np.int64)
    for k in range(len(names)):
        own = group == k
        place = np.searchsorted(seq[own], ends, side="right") - 1
        held[k] = np.where(place >= 0, held_bytes[own][np.maximum(place, 0)], 0)
    return names, held, ends != UNKNOWN


def ends_of(last_seq: Integers, entry_seq: int, summarised_seq: int) -> Integers:
    """Of each row the last end of a range of the summaries by its last event; UNKNOWN where that is far off.

    Args:
        last_seq: the last event of each row.
        entry_seq: the last event before the first row.
        summarised_seq: the last position that is in the summaries.
    """
    end = (last_seq + 1) // STRETCH_SEQS * STRETCH_SEQS - 1
    end = np.where((last_seq >= summarised_seq) & (end < summarised_seq), summarised_seq, end)
    before = np.concatenate([np.full(2, entry_seq), last_seq[:-2]])[: len(last_seq)]
    is_near = (last_seq != UNKNOWN) & (end > before) & (end <= summarised_seq)
    # A row without events holds what the row before it ended with.
    for i in np.flatnonzero(last_seq[1:] == last_seq[:-1]) + 1:
        is_near[i] = is_near[i - 1]
    return np.where(is_near, end, UNKNOWN)
