"""Does it fit, and for how long? Each rank against its device, or against a size to try.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.page.answers.peak import DEVICE_TYPE, chosen_type
from rankmem_aggregator.page.fitting import (
    MARGIN_LEAST_BYTES,
    MARGIN_SHARE,
    Fit,
    Held,
    fit_of,
    growth_of_peaks,
)
from rankmem_aggregator.page.growth import METHOD, STEPS_LEAST, WARM_UP_LEAST, Growth
from rankmem_aggregator.page.parameters import parameter, real
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute

GIB: Final = 1 << 30
BINS: Final = 240
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
        ("slope_bytes", pa.float64()),
        ("slope_low", pa.float64()),
        ("slope_high", pa.float64()),
        ("level_bytes", pa.float64()),
        ("num_steps", pa.int32()),
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

    Columns: those of ``sql/page/fit.sql`` without its lists; size_bytes, the device or what is tried;
    slope_bytes with slope_low and slope_high (bytes a step, of the steps' peaks; NULL: too few steps),
    level_bytes, num_steps; and those of :class:`~rankmem_aggregator.page.fitting.Fit`.
    Facts: device_types, device_type, size_gib, not_known (sentences), method, margin_share,
    margin_least_bytes.
    """
    types = reading.ask("fit_devices")["device_type"].to_pylist()
    device_type = chosen_type(types, asked.device_type)
    rows = reading.show("fit", device_type=device_type, num_bins=BINS).to_pylist()
    made = [_made(row, asked.size_gib, device_type) for row in rows]
    columns = {
        **{field.name: pa.array([row[field.name] for row in rows], field.type) for field in KNOWN},
        **{field.name: pa.array([row[field.name] for row in made], field.type) for field in MADE},
    }
    return reading.answer(
        pa.table(columns),
        exact=True,
        source="memory_bucket, step_bucket, process_sample",
        device_types=types,
        device_type=device_type,
        size_gib=asked.size_gib,
        not_known=not_known(rows, made, device_type),
        method=METHOD,
        margin_share=MARGIN_SHARE,
        margin_least_bytes=MARGIN_LEAST_BYTES,
    )


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
    without = sum(not row["steps"] for row in rows)
    if without:
        told.append(
            f"No steps of {_of(without, of_all)}: no optimizer stepped and rankmem_agent.step() was not "
            "called, so growth is not known."
        )
    few = sum(
        bool(row["steps"]) and each["slope_bytes"] is None for row, each in zip(rows, made, strict=True)
    )
    if few:
        told.append(
            f"Too few steps of {_of(few, of_all)} for a slope: {STEPS_LEAST + WARM_UP_LEAST} are needed."
        )
    return told


def _made(row: dict[str, Any], size_gib: float | None, device_type: str | None) -> dict[str, Any]:
    growth: Growth | None = growth_of_peaks(row["steps"], row["step_peaks"])
    size: int | None = None
    if size_gib is not None:
        size = round(size_gib * GIB)
    elif device_type != "cpu":
        size = row["device_total_bytes"]
    held = Held(
        peak_bytes=row["peak_bytes"],
        reserved_peak_bytes=row["reserved_peak_bytes"],
        beyond_bytes=row["beyond_bytes"],
        size_bytes=size,
        step_ns=row["step_ns"],
        growth=growth,
    )
    return {
        "size_bytes": size,
        "slope_bytes": growth and growth.slope,
        "slope_low": growth and growth.low,
        "slope_high": growth and growth.high,
        "level_bytes": growth and growth.level,
        "num_steps": growth and growth.num_steps,
        **asdict(fit_of(held)),
    }


def _of(count: int, of_all: int) -> str:
    if count == of_all:
        return "any rank"
    return f"{count:,} of {of_all:,} ranks"


ROUTES: Final = (SessionRoute(path="/fit", parameters=FitAsked, answer=fit),)
