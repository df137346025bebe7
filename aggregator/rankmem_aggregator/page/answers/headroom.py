"""Which ranks could get the least more, by what is stored now.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.parameters import DEVICE_TYPE, integer, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.whole_session import first_device_type

ROWS_MAX: Final = 1000
"""Ranks of an answer, the fullest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomAsked:
    """Parameters of ``/headroom``."""

    device_type: str | None = parameter(DEVICE_TYPE, "type of device, as in /heat", default=None)
    limit: int = parameter(integer(1, ROWS_MAX), "devices, at most", default=1)


def headroom(reading: Reading, asked: HeadroomAsked) -> pa.Table:
    """Devices, the one with the least headroom first. Columns: those of ``sql/page/headroom.sql``."""
    device_type = asked.device_type or first_device_type(reading)
    rows = reading.show("headroom", device_type=device_type, at_most=asked.limit)
    return reading.answer(rows, exact=True, source="rank_now")


ROUTES: Final = (SessionRoute(path="/headroom", parameters=HeadroomAsked, answer=headroom),)
