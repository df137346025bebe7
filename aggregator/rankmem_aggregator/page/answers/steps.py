"""Does it leak? Steps of a rank, and all ranks over the steps.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankmem_aggregator.page.answers.peak import DEVICE_TYPE, chosen_type
from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.growth import METHOD, Growth, growth_of, warm_up_end
from rankmem_aggregator.page.parameters import RANK, choice, integer, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.sql import query_text
from rankmem_protos.devices import HOST_MEMORY
from rankmem_protos.errors import Code, RankmemError

BINS_MAX: Final = 512
STEPS_MAX: Final = 20_000
"""Rows of the table of steps: 2 MB."""
VALUES_MAX: Final = 40_000
"""Cells whose bytes travel beside their colours: 320 kB."""
_OF_ATTEMPT: Final = """SELECT * FROM (
{steps}
)
WHERE attempt = {attempt}
ORDER BY rank, device, attempt, step"""
TIMES: Final = ("started_ns", "ended_ns", "peak_time_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsAsked:
    """Parameters of ``/steps``."""

    rank: int | None = parameter(RANK, "global rank; none: the one that grows most", default=None)
    attempt: int | None = parameter(RANK, "which start of the workers; none: all of the rank", default=None)
    device_type: str | None = parameter(DEVICE_TYPE, "type of device, where no rank is given", default=None)
    limit: int = parameter(integer(1, STEPS_MAX), "rows at most, the last ones", default=2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHeatAsked:
    """Parameters of ``/step_heat``."""

    figure: str = parameter(
        choice(("peak", "end", "growth")), "peak of a step, what it leaves behind, or how much that grew"
    )
    device_type: str | None = parameter(DEVICE_TYPE, "type of device, as in /peak", default=None)
    attempt: int | None = parameter(RANK, "which start of the workers; none: the last", default=None)
    bins: int = parameter(integer(1, BINS_MAX), "bins of steps at most", default=BINS_MAX)


def steps(reading: Reading, asked: StepsAsked) -> pa.Table:
    """The steps of a rank in order; columns: those of ``Queries.steps``.

    Facts: rank; grows_most, whether it surely grows and was chosen for that; num_rows, of all. The
    statement shown is of all attempts.
    """
    session = reading.session.session_id
    rank, grows_most = asked.rank, False
    if rank is None:
        rank, _, _, grows_most = growing(reading, asked.device_type, asked.attempt)
    rows = reading.queries.steps(session, rank=rank)
    shown = as_sql(query_text("steps"), {"session": session, "rank": rank})
    if asked.attempt is not None:
        rows = rows.filter(pc.equal(rows["attempt"], asked.attempt))
        shown = _OF_ATTEMPT.format(steps=shown, attempt=asked.attempt)
    reading.shown_as(shown)
    last = rows.slice(max(0, rows.num_rows - asked.limit))
    return reading.answer(
        reading.relative(last, *TIMES),
        exact=last.num_rows == rows.num_rows,
        source="step_bucket",
        rank=rank,
        grows_most=grows_most,
        num_rows=rows.num_rows,
    )


@dataclass(frozen=True, slots=True)
class Cells:
    """Ranks over steps: a row a rank, a column a bin."""

    tracks: list[dict[str, Any]]
    """rank, attempt and device of each row."""
    first_steps: NDArray[np.int64]
    last_steps: NDArray[np.int64]
    """Of each bin."""
    peaks: NDArray[np.int64]
    ends: NDArray[np.int64]
    known: NDArray[np.bool_]

    def growths(self, values: NDArray[np.int64]) -> list[Growth | None]:
        """The growth of a figure of each rank."""
        return [
            growth_of(self.last_steps[known], own[known])
            for own, known in zip(values, self.known, strict=True)
        ]


def cells_of(rows: pa.Table) -> Cells:
    """The rows of ``step_cells`` as matrices."""
    bins = rows["bin"].to_numpy()
    ranks, first, row = np.unique(rows["rank"].to_numpy(), return_index=True, return_inverse=True)
    shape = (len(ranks), int(bins.max()) + 1 if len(bins) else 0)

    def matrix(name: str) -> NDArray[np.int64]:
        values = np.zeros(shape, np.int64)
        values[row, bins] = rows[name].to_numpy()
        return values

    known = np.zeros(shape, bool)
    known[row, bins] = True
    firsts = np.where(known, matrix("first_step"), np.iinfo(np.int64).max)
    tracks = rows.select(["attempt", "rank", "device"]).take(pa.array(first)).to_pylist()
    held = known.any(axis=0)
    return Cells(
        tracks,
        firsts.min(axis=0, initial=np.iinfo(np.int64).max)[held],
        matrix("last_step").max(axis=0, initial=0)[held],
        matrix("peak_bytes")[:, held],
        matrix("end_bytes")[:, held],
        known[:, held],
    )


def step_heat(reading: Reading, asked: StepHeatAsked) -> pa.Table:
    """A row for each rank, in order: where it stood in each bin of steps, and how fast that grows.

    attempt, rank, device; cells (list of uint8, 0: not known, else 1 to 255 from low to high); values (list
    of bytes, NULL where there are too many); num_steps (points of the slope), slope_bytes, slope_low,
    slope_high (bytes a step, with the ends of the 95 % interval; NULL where there are too few steps): of the
    peak, or of what a step leaves behind. Facts: low_bytes and high_bytes of the scale, first_steps and
    last_steps of the bins, warm_up_end, the first step that counts for slopes, method.
    """
    device_type = device_type_of(reading, asked.device_type)
    rows = reading.show("step_cells", device_type=device_type, attempt=asked.attempt, num_bins=asked.bins)
    cells = cells_of(rows)
    figure = cells.peaks if asked.figure == "peak" else cells.ends
    growths = cells.growths(figure)
    warm = warm_up_end(cells.last_steps) if len(cells.last_steps) else 0
    values, known = figure, cells.known
    if asked.figure == "growth":
        values = np.diff(figure, axis=1, prepend=figure[:, :1])
        known = cells.known & np.roll(cells.known, 1, axis=1)
        known[:, :1] = False
        low, high = _symmetric(values, known & (cells.first_steps >= warm))
    else:
        low, high = _ends(values, known)
    scaled = np.where(known, 1 + (values.clip(low, high) - low) * 254 // max(1, high - low), 0)
    found = _ranks_table(cells.tracks, scaled.astype(np.uint8), values, known, growths)
    return reading.answer(
        found,
        exact=len(cells.first_steps) == 0 or bool((cells.first_steps == cells.last_steps).all()),
        source="step_bucket",
        device_type=device_type,
        figure=asked.figure,
        low_bytes=low,
        high_bytes=high,
        first_steps=cells.first_steps.tolist(),
        last_steps=cells.last_steps.tolist(),
        warm_up_end=warm,
        method=METHOD,
    )


def growing(reading: Reading, device_type: str | None, attempt: int | None) -> tuple[int, int, str, bool]:
    """The device whose memory after steps grows fastest, and whether it surely does.

    Where there are too few steps for that it is the one left highest; without steps, the highest of all.
    """
    chosen = device_type_of(reading, device_type)
    cells = cells_of(reading.ask("step_cells", device_type=chosen, attempt=attempt, num_bins=BINS_MAX))
    if not cells.tracks:
        return *_highest(reading), False
    growths = cells.growths(cells.ends)
    slopes = [growth.slope if growth else -np.inf for growth in growths]
    is_known = any(growth is not None for growth in growths)
    best = int(np.argmax(slopes if is_known else cells.ends.max(axis=1)))
    track, growth = cells.tracks[best], growths[best]
    return track["rank"], track["attempt"], track["device"], growth is not None and growth.is_sure


def _highest(reading: Reading) -> tuple[int, int, str]:
    """The device that stood highest, of a session without steps."""
    known = [row for row in reading.ask("ranks").to_pylist() if row["device"] is not None]
    if not known:
        raise RankmemError(Code.NOT_FOUND, "no rank has events", "rankmem status says what each rank sent")
    best = max(
        known, key=lambda row: (row["device_type"] not in HOST_MEMORY, row["peak_bytes"], -row["rank"])
    )
    return best["rank"], best["attempt"], best["device"]


def device_type_of(reading: Reading, wanted: str | None) -> str | None:
    """The type of device that is meant, of those with steps; None where there are no steps."""
    types = reading.ask("step_devices")["device_type"].to_pylist()
    return chosen_type(types, wanted) if types else None


def _ends(values: NDArray[np.int64], known: NDArray[np.bool_]) -> tuple[int, int]:
    shown = values[known]
    return (int(shown.min()), int(shown.max())) if len(shown) else (0, 0)


def _symmetric(values: NDArray[np.int64], known: NDArray[np.bool_]) -> tuple[int, int]:
    """The scale of differences: as far below zero as above."""
    shown = values[known]
    most = int(np.abs(shown).max()) if len(shown) else 0
    return -most, most


def _ranks_table(
    tracks: list[dict[str, Any]],
    scaled: NDArray[np.uint8],
    values: NDArray[np.int64],
    known: NDArray[np.bool_],
    growths: list[Growth | None],
) -> pa.Table:
    bins = scaled.shape[1]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(scaled.ravel()), bins) if bins else []
    exact = [
        [int(value) if is_known else None for value, is_known in zip(own, have, strict=True)]
        for own, have in zip(values, known, strict=True)
    ]
    few = values.size <= VALUES_MAX
    return pa.table(
        {
            "attempt": pa.array([track["attempt"] for track in tracks], pa.int32()),
            "rank": pa.array([track["rank"] for track in tracks], pa.int32()),
            "device": pa.array([track["device"] for track in tracks], pa.string()),
            "cells": pa.array(lists, pa.list_(pa.uint8(), bins)) if not bins else lists,
            "values": pa.array(exact if few else [None] * len(tracks), pa.list_(pa.int64())),
            "num_steps": pa.array([growth and growth.num_steps for growth in growths], pa.int32()),
            "slope_bytes": pa.array([growth and growth.slope for growth in growths], pa.float64()),
            "slope_low": pa.array([growth and growth.low for growth in growths], pa.float64()),
            "slope_high": pa.array([growth and growth.high for growth in growths], pa.float64()),
        }
    )


ROUTES: Final = (
    SessionRoute(path="/steps", parameters=StepsAsked, answer=steps),
    SessionRoute(path="/step_heat", parameters=StepHeatAsked, answer=step_heat),
)
