"""The exact bytes of ranks within an interval of time: what a cell of the heat map stands for.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page import rank_matrix
from rankmem_aggregator.page.answers.heat import FIGURES, MODES
from rankmem_aggregator.page.parameters import (
    DEVICE_TYPE,
    TIME,
    check_range,
    choice,
    integers,
    parameter,
)
from rankmem_aggregator.page.rank_matrix import GROUPS, UNKNOWN, Bins, Places
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.whole_session import first_device_type
from rankmem_protos.bounds import RANKS_MAX

RANKS_AT_MOST: Final = 256
"""Ranks of a request: those that share a row of the heat map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAsked:
    """Parameters of ``/cell``."""

    ranks: tuple[int, ...] = parameter(integers(0, RANKS_MAX, at_most=RANKS_AT_MOST), "global ranks")
    from_ns: int = parameter(TIME, "begin, ns since the session's start", name="from")
    until_ns: int = parameter(TIME, "end", name="to")
    figure: str = parameter(choice(FIGURES), "which bytes", default="requested")
    device_type: str | None = parameter(DEVICE_TYPE, "type of device, as in /heat", default=None)
    mode: str = parameter(choice(MODES), "as in /heat", default="abs")
    group: str = parameter(choice(GROUPS), "whose median", default="job")


def cell(reading: Reading, asked: CellAsked) -> pa.Table:
    """A row for each rank of which something is known, what matters most first.

    Columns: rank, attempt, device, host_name, bytes, at_ns and seq (those of ``sql/page/cell.sql``, exact);
    median_bytes (of its group in this interval, in mode median), headroom_bytes (in mode headroom).
    """
    check_range(asked.from_ns, asked.until_ns + 1)  # one instant is an interval, too
    origin_ns = reading.session.origin_ns
    from_ns, until_ns = origin_ns + asked.from_ns, origin_ns + asked.until_ns
    device_type = asked.device_type or first_device_type(reading)
    places = Places.of(reading)
    rows = reading.show(
        "cell",
        lives=places.lives_text(asked.ranks),
        ranks=",".join(map(str, asked.ranks)),
        first_rank=min(asked.ranks),
        last_rank=max(asked.ranks),
        device_type=device_type,
        figure=asked.figure,
        from_ns=from_ns,
        until_ns=until_ns,
    )
    rows = reading.relative(rows, "at_ns")
    medians, headroom = pa.nulls(len(rows), pa.float64()), pa.nulls(len(rows), pa.int64())
    if len(rows) and asked.mode != "abs":
        bins = Bins(from_ns=from_ns, until_ns=until_ns, count=1)
        if asked.mode == "median":
            matrix = rank_matrix.held(reading, places, bins, device_type, asked.figure)
            middle = rank_matrix.medians(matrix, places.named(matrix.ranks, asked.group))[:, 0]
            medians = _by_rank(
                rows, dict(zip(matrix.ranks.tolist(), middle.tolist(), strict=True)), pa.float64()
            )
        else:
            matrix = rank_matrix.headroom(reading, places, bins, device_type)
            free = {
                rank: value
                for rank, value in zip(matrix.ranks.tolist(), matrix.cells[:, 0].tolist(), strict=True)
                if value != UNKNOWN
            }
            headroom = _by_rank(rows, free, pa.int64())
    rows = rows.append_column("median_bytes", medians).append_column("headroom_bytes", headroom)
    return reading.answer(rows.take(_first(rows)), exact=True, source="memory_event", mode=asked.mode)


def _by_rank(rows: pa.Table, values: dict[int, float], kind: pa.DataType) -> pa.Array:
    return pa.array([values.get(rank) for rank in rows["rank"].to_pylist()], kind)


def _first(rows: pa.Table) -> pa.Array:
    """The places of the rows, what matters most first; among equals as they stand."""
    weight = [
        -free if free is not None else abs(bytes_ - (median or 0))
        for bytes_, median, free in zip(
            rows["bytes"].to_pylist(),
            rows["median_bytes"].to_pylist(),
            rows["headroom_bytes"].to_pylist(),
            strict=True,
        )
    ]
    return pa.array(np.argsort(-np.array(weight, np.float64), kind="stable"))


ROUTES: Final = (SessionRoute(path="/cell", parameters=CellAsked, answer=cell),)
