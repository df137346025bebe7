"""The curve of a device of a rank.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page.parameters import DEVICE, RANK, TIME, check_range, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAsked:
    """Parameters of ``/curve``."""

    rank: int = parameter(RANK, "global rank")
    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)


def curve(reading: Reading, asked: CurveAsked) -> pa.Table:
    """Points in order of time: time_ns (since the session's start), requested (bytes)."""
    check_range(asked.from_ns, asked.until_ns)
    track = reading.track(asked.rank, asked.attempt, asked.device)
    rows = reading.show(
        "curve_buckets",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        from_ns=reading.absolute(asked.from_ns),
        until_ns=reading.absolute(asked.until_ns),
    )
    rows = reading.relative(rows, "peak_ns", "last_ns")
    times = np.stack([rows["peak_ns"].to_numpy(), rows["last_ns"].to_numpy()], axis=1).ravel()
    values = np.stack(
        [rows["requested_peak_bytes"].to_numpy(), rows["requested_last_bytes"].to_numpy()], axis=1
    ).ravel()
    found = pa.table({"time_ns": times, "requested": values})
    return reading.answer(
        found,
        exact=False,
        source="memory_bucket",
        rank=track.rank,
        attempt=track.attempt,
        device=track.device,
    )


ROUTES: Final = (SessionRoute(path="/curve", parameters=CurveAsked, answer=curve),)
