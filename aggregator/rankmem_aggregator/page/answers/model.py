"""The model: its module tree with bytes at the peak, its parameters; and what lies beyond the allocator.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.parameters import DEVICE, RANK, integer, parameter, text
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.sql import query_text
from rankmem_protos.bounds import MODULE_BYTES_MAX

WEIGHTS_MAX: Final = 5000
"""Parameters of an answer, the largest first: more do not help a reader."""
MODEL_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesAsked:
    """Parameters of ``/modules``."""

    rank: int | None = parameter(RANK, "global rank; absent: all ranks added up", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsAsked:
    """Parameters of ``/weights``."""

    rank: int = parameter(RANK, "global rank")
    module: str | None = parameter(text(MODULE_BYTES_MAX), "path of a module", default=None)
    limit: int = parameter(integer(1, WEIGHTS_MAX), "rows at most", default=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondAsked:
    """Parameters of ``/beyond``."""

    rank: int = parameter(RANK, "global rank")
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index", default=None)


def modules(reading: Reading, asked: ModulesAsked) -> pa.Table:
    """The module tree with bytes at the peak, as ``Queries.modules`` has it."""
    session = reading.session.session_id
    rows = reading.queries.modules(session, rank=asked.rank)
    reading.shown_as(as_sql(query_text("modules"), {"session": session, "rank": asked.rank}))
    return reading.answer(rows, exact=True, source="module_at_peak")


def weights(reading: Reading, asked: WeightsAsked) -> pa.Table:
    """The largest parameters of a rank. Columns: those of ``sql/page/weights.sql`` but for the totals.

    Facts: total (parameters), total_bytes, total_grad_bytes of all that fit.
    """
    rows = reading.show("weights", rank=asked.rank, module=asked.module, at_most=asked.limit)
    names = ("total", "total_bytes", "total_grad_bytes")
    totals = {name: rows[name][0].as_py() if rows.num_rows else 0 for name in names}
    return reading.answer(
        rows.drop_columns(list(names)), exact=rows.num_rows == totals["total"], source="weight", **totals
    )


def beyond(reading: Reading, asked: BeyondAsked) -> pa.Table:
    """What a rank's process held beyond its allocator. Columns: those of ``sql/page/beyond.sql``."""
    track = reading.track(asked.rank, asked.attempt, asked.device)
    rows = reading.show("beyond", attempt=track.attempt, rank=track.rank, device=track.device)
    return reading.answer(
        reading.relative(rows, "time_ns"), exact=True, source="app_curve", device=track.device
    )


ROUTES: Final = (
    SessionRoute(path="/modules", parameters=ModulesAsked, answer=modules, limit_s=MODEL_S),
    SessionRoute(path="/weights", parameters=WeightsAsked, answer=weights),
    SessionRoute(path="/beyond", parameters=BeyondAsked, answer=beyond),
)
