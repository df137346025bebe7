"""The heat map of ranks over time in a report.

Stage: export. In: ranks and a range; out: HTML that ``report.js`` draws into: a line per rank, a column per
bin of time, the highest known total of one of the rank's devices in it. Without events a device keeps its
total, also before its first one; nothing is drawn before the rank's process began.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankmem_aggregator.exports.contract import Selection
from rankmem_aggregator.quantity_text import bytes_text, instant_text

BINS: Final = 160
"""Bins of time: a column of some 7 dots each."""


def heat_over_time(selection: Selection, device_type: str, ranks: list[int], start_ns: int) -> str:
    """The HTML of the map.

    Args:
        selection: where to read, and the range of time.
        device_type: type of the devices that count.
        ranks: global ranks, ascending.
        start_ns: the session's start.
    """
    (span,) = selection.rows("span")
    from_ns = int(span["first_ns"] if selection.from_ns is None else selection.from_ns)
    until_ns = max(int(span["last_ns"] if selection.until_ns is None else selection.until_ns), from_ns)
    rows = selection.rows(
        "heat",
        device_type=device_type,
        ranks=",".join(map(str, ranks)),
        num_bins=BINS,
        from_ns=from_ns,
        until_ns=until_ns,
    )
    peaks = _held(rows, ranks)
    known = peaks[peaks >= 0]
    least, most = int(known.min(initial=0)), int(known.max(initial=0))
    data = {
        "ranks": ranks,
        "bins": BINS,
        "peaks": peaks.ravel().tolist(),
        "from_ns": from_ns - start_ns,
        "until_ns": until_ns - start_ns,
        "least": least,
        "most": most,
    }
    first, after = (instant_text(time_ns, start_ns) for time_ns in (from_ns, until_ns))
    return (
        "<h3>Over time</h3>"
        '<div class="heat-frame"><canvas class="heat" aria-label="Memory of ranks over time"></canvas>'
        f'<p class="heat-tip">{first} to {after}, one line per rank from {ranks[0]} to {ranks[-1]}, '
        f"{bytes_text(least)} (faint) to {bytes_text(most)} (strong)</p>"
        f'<script type="application/json" class="heat-data">{json.dumps(data)}</script></div>'
    )


def _held(rows: list[dict[str, Any]], ranks: list[int]) -> npt.NDArray[np.int64]:
    """Bytes by rank and bin; -1 before a rank's process began."""
    devices = sorted({(row["rank"], row["device"]) for row in rows})
    peaks = np.full((len(devices), BINS + 1), -1, np.int64)  # the first column: before the range
    last = peaks.copy()
    place = {device: number for number, device in enumerate(devices)}
    for row in rows:
        where = place[row["rank"], row["device"]], row["bin"] + 1
        peaks[where], last[where] = row["peak_bytes"], row["last_bytes"]
    for column in range(1, BINS + 1):
        idle = last[:, column] < 0
        last[idle, column] = last[idle, column - 1]
        peaks[:, column] = np.maximum(peaks[:, column], last[:, column - 1])
    highest = np.full((len(ranks), BINS), -1, np.int64)
    line = {rank: number for number, rank in enumerate(ranks)}
    for (rank, _), values in zip(devices, peaks[:, 1:], strict=True):
        highest[line[rank]] = np.maximum(highest[line[rank]], values)
    return highest
