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

from rankmem_aggregator.insights.trend import warm_up
from rankmem_aggregator.page.answers.peak import DEVICE_TYPE, chosen_type
from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.insight import INSIGHT_S, leaks_of, said
from rankmem_aggregator.page.parameters import RANK, choice, integer, parameter
from rankmem_aggregator.page.pool import QUESTION_S
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

    rank: int | None = parameter(RANK, "global rank; none: the one that leaks fastest", default=None)
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

    Facts: rank; grows_most, whether it leaks and was chosen for that; num_rows, of all. The
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
    """A row for each rank, in order: where it stood in each bin of steps.

    attempt, rank, device; cells (list of uint8, 0: not known, else 1 to 255 from low to high); values (list
    of bytes, NULL where there are too many). Facts: low_bytes and high_bytes of the scale, which is that of
    the steps after the warm-up where growth is shown; first_steps and last_steps of the bins.
    """
    device_type = device_type_of(reading, asked.device_type)
    rows = reading.show("step_cells", device_type=device_type, attempt=asked.attempt, num_bins=asked.bins)
    cells = cells_of(rows)
    figure = cells.peaks if asked.figure == "peak" else cells.ends
    values, known = figure, cells.known
    if asked.figure == "growth":
        values = np.diff(figure, axis=1, prepend=figure[:, :1])
        known = cells.known & np.roll(cells.known, 1, axis=1)
        known[:, :1] = False
        low, high = _symmetric(values, known & (cells.first_steps >= warm_up_end(cells.first_steps)))
    else:
        low, high = _ends(values, known)
    scaled = np.where(known, 1 + (values.clip(low, high) - low) * 254 // max(1, high - low), 0)
    found = _ranks_table(cells.tracks, scaled.astype(np.uint8), values, known)
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
    )


def warm_up_end(first_steps: NDArray[np.int64]) -> int:
    """The first step that counts, of bins of steps in order."""
    return int(first_steps[min(warm_up(len(first_steps)), len(first_steps) - 1)]) if len(first_steps) else 0


def growing(reading: Reading, device_type: str | None, attempt: int | None) -> tuple[int, int, str, bool]:
    """The device whose lines leak fastest (``rankmem leaks``), and whether there is one.

    Where none leaks it is the one left highest; without steps, the highest of all.
    """
    chosen = device_type_of(reading, device_type)
    cells = cells_of(reading.ask("step_cells", device_type=chosen, attempt=attempt, num_bins=1))
    if not cells.tracks:
        return *_highest(reading), False
    leaking = [
        row
        for row in said(leaks_of(reading))["figures"].get("devices", ())
        if (row["device"].split(":")[0], row["attempt"]) == (chosen, cells.tracks[0]["attempt"])
    ]
    best = max(
        leaking,
        key=lambda row: row["bytes_per_step"],
        default=cells.tracks[int(np.argmax(cells.ends.max(axis=1)))],
    )
    return best["rank"], best["attempt"], best["device"], bool(leaking)


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
        }
    )


def limit_s(asked: Any) -> float:
    """How long an answer may take that is about one rank: longer where it is to be the one that leaks."""
    return INSIGHT_S if asked.rank is None else QUESTION_S


ROUTES: Final = (
    SessionRoute(path="/steps", parameters=StepsAsked, answer=steps, limit_of=limit_s),
    SessionRoute(path="/step_heat", parameters=StepHeatAsked, answer=step_heat),
)
