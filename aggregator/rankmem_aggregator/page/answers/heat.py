"""Ranks over time as a matrix of small numbers.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page.parameters import TIME, check_range, choice, integer, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute

BINS_MAX: Final = 1024
DEVICE_TYPES: Final = ("cuda", "npu", "xpu", "mps", "hpu", "cpu", "gpu", "tpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatAsked:
    """Parameters of ``/heat``."""

    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    bins: int = parameter(integer(1, BINS_MAX), "intervals of time", default=400)
    device_type: str = parameter(choice(DEVICE_TYPES), "type of device", default="cpu")


def heat(reading: Reading, asked: HeatAsked) -> pa.Table:
    """A row for each rank: rank, cells (list of uint8, 0: nothing known, 1 to 255 from lowest to highest)."""
    check_range(asked.from_ns, asked.until_ns)
    rows = reading.show(
        "heat",
        device_type=asked.device_type,
        from_ns=reading.absolute(asked.from_ns),
        until_ns=reading.absolute(asked.until_ns),
        num_bins=asked.bins,
    )
    ranks, row = np.unique(rows["rank"].to_numpy(), return_inverse=True)
    cells = np.full((len(ranks), asked.bins), -1, np.int64)
    cells[row, rows["bin"].to_numpy()] = rows["peak_bytes"].to_numpy()
    known = cells[cells >= 0]
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    scaled = np.where(cells < 0, 0, 1 + (cells - low) * 254 // max(1, high - low)).astype(np.uint8)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(scaled.ravel()), asked.bins)
    found = pa.table({"rank": pa.array(ranks, pa.int32()), "cells": lists})
    return reading.answer(found, exact=False, source="memory_bucket", low_bytes=low, high_bytes=high)


ROUTES: Final = (SessionRoute(path="/heat", parameters=HeatAsked, answer=heat),)
