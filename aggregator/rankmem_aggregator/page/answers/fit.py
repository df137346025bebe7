"""Does it fit, and for how long? Each rank against its device, or against a size to try.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights.capacity import SPARE_BYTES, SPARE_SHARE
from rankmem_aggregator.insights.leaks import RATES
from rankmem_aggregator.page.answers.peak import DEVICE_TYPE, chosen_type
from rankmem_aggregator.page.fitting import Fit, Held, fit_of
from rankmem_aggregator.page.insight import INSIGHT_S, leaks_of, said
from rankmem_aggregator.page.parameters import parameter, real
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_protos.devices import HOST_MEMORY

GIB: Final = 1 << 30
PLACE: Final = ("attempt", "rank", "device")
SIZE_GIB: Final = real(0.001, 1 << 20)
KNOWN: Final = pa.schema(
    [
        ("attempt", pa.int32()),
        ("rank", pa.int32()),
        ("device", pa.string()),
        ("host_name", pa.string()),
        ("peak_bytes", pa.int64()),
        ("reserved_peak_bytes", pa.int64()),
        ("headroom_bytes", pa.int64()),
        ("beyond_bytes", pa.int64()),
        ("device_total_bytes", pa.int64()),
        ("step_ns", pa.int64()),
    ]
)
"""The columns of ``sql/page/fit.sql`` that go on as they are."""
MADE: Final = pa.schema(
    [
        ("size_bytes", pa.int64()),
        ("growth", pa.string()),
        *((name, pa.float64()) for name in RATES),
        *((name, pa.string() if name == "verdict" else pa.int64()) for name in Fit.__slots__),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAsked:
    """Parameters of ``/fit``."""

    device_type: str | None = parameter(DEVICE_TYPE, "type of device, as in /peak", default=None)
    size_gib: float | None = parameter(
        SIZE_GIB, "a device size to try; none: each rank's own device", default=None
    )


def fit(reading: Reading, asked: FitAsked) -> pa.Table:
    """A row for each device of a rank of the last attempt, in order of the ranks.

    Columns: those of ``sql/page/fit.sql``; size_bytes, the device or what is tried; growth (leaks, or grows:
    what may still be a cache; NULL: nothing leaks there), with bytes_per_step, low_bytes_per_step and
    high_bytes_per_step of all lines that leak; and those of :class:`~rankmem_aggregator.page.fitting.Fit`.
    Facts: device_types, device_type, size_gib, not_known (sentences), growth_is_known, margin_share,
    margin_least_bytes (None on the host, where all of a size is usable).
    """
    types = reading.ask("fit_devices")["device_type"].to_pylist()
    device_type = chosen_type(types, asked.device_type)
    rows = reading.show("fit", device_type=device_type).to_pylist()
    leaks = said(leaks_of(reading))
    leaking = {tuple(each[name] for name in PLACE): each for each in leaks["figures"].get("devices", ())}
    made = [_made(row, leaking.get(tuple(row[name] for name in PLACE)), asked.size_gib) for row in rows]
    columns = {
        **{field.name: pa.array([row[field.name] for row in rows], field.type) for field in KNOWN},
        **{field.name: pa.array([row[field.name] for row in made], field.type) for field in MADE},
    }
    is_known = leaks["verdict"] != "cannot tell"
    on_host = device_type in HOST_MEMORY
    return reading.answer(
        pa.table(columns),
        exact=True,
        source="memory_bucket, process_sample, rankmem leaks",
        device_types=types,
        device_type=device_type,
        size_gib=asked.size_gib,
        not_known=not_known(rows, made, device_type) + ([] if is_known else [_no_growth(leaks["sentence"])]),
        growth_is_known=is_known,
        margin_share=None if on_host else SPARE_SHARE,
        margin_least_bytes=None if on_host else SPARE_BYTES,
    )


def _no_growth(reason: str) -> str:
    return f"Whether it grows is not known: {reason}."


def not_known(rows: list[dict[str, Any]], made: list[dict[str, Any]], device_type: str | None) -> list[str]:
    """What the answer cannot say, and why: sentences."""
    told = []
    of_all = len(rows)
    if device_type == "cpu":
        told.append(
            "On cpu the ranks of a host share its memory with all else there: give a size for one rank to "
            "try. What the allocator reserves and what a process holds beyond it are not known."
        )
    elif count := sum(row["size_bytes"] is None for row in made):
        told.append(f"The size of the device is not recorded for {_of(count, of_all)}: give one to try.")
    if device_type != "cpu":
        if count := sum(row["reserved_peak_bytes"] is None for row in rows):
            told.append(f"What the allocator reserved is not recorded for {_of(count, of_all)}.")
        if count := sum(row["beyond_bytes"] is None for row in rows):
            told.append(
                f"What the process holds beyond the allocator was not sampled for {_of(count, of_all)}: it "
                "counts as nothing."
            )
    return told


def _made(row: dict[str, Any], leaking: dict[str, Any] | None, size_gib: float | None) -> dict[str, Any]:
    device_type = row["device"].partition(":")[0]
    size: int | None = None
    if size_gib is not None:
        size = round(size_gib * GIB)
    elif device_type != "cpu":
        size = row["device_total_bytes"]
    held = Held(
        device_type=device_type,
        peak_bytes=row["peak_bytes"],
        reserved_peak_bytes=row["reserved_peak_bytes"],
        beyond_bytes=row["beyond_bytes"],
        size_bytes=size,
        step_ns=row["step_ns"],
        leaking=leaking,
    )
    grown = {name: leaking and leaking[name] for name in RATES}
    return {
        "size_bytes": size,
        "growth": leaking and leaking["verdict"],
        **grown,
        **asdict(fit_of(held)),
    }


def _of(count: int, of_all: int) -> str:
    if count == of_all:
        return "any rank"
    return f"{count:,} of {of_all:,} ranks"


ROUTES: Final = (SessionRoute(path="/fit", parameters=FitAsked, answer=fit, limit_s=INSIGHT_S),)
