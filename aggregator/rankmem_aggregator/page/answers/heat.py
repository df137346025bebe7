"""Ranks over time as a matrix of small numbers: absolute, against the median of a group, or as headroom.

Stage: page, in the thread of a request. Cells are uint8: 0 where nothing is known, 1 to 255 on a scale that
the facts state. Ranks that share a row are pooled by what matters most: the highest, the furthest from the
median, the least headroom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmem_aggregator.page import rank_matrix
from rankmem_aggregator.page.answers.trust import GAPS_MAX
from rankmem_aggregator.page.parameters import (
    BYTES,
    DEVICE_TYPE,
    RANK,
    TIME,
    check_range,
    choice,
    integer,
    parameter,
)
from rankmem_aggregator.page.rank_matrix import (
    COORDINATES,
    GROUPS,
    UNKNOWN,
    Bins,
    Integers,
    Places,
    RankMatrix,
)
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.whole_session import CELLS_MAX, WholeSession, first_device_type
from rankmem_protos.bounds import NUMBER_MAX

ROWS_MAX: Final = 2048
STEPS_MAX: Final = 200
FIGURES: Final = ("requested", "allocated", "active", "reserved")
MODES: Final = ("abs", "median", "headroom")
ORDERS: Final = ("rank", "peak", "host", *COORDINATES)
SCALE: Final = integer(-NUMBER_MAX // 2, NUMBER_MAX // 2)
LAST: Final = "￿"
"""Sorts behind every name: ranks of which the group is not known."""

Cells = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatAsked:
    """Parameters of ``/heat``."""

    from_ns: int | None = parameter(
        TIME, "begin, ns since the session's start; absent: the whole session", name="from", default=None
    )
    until_ns: int | None = parameter(TIME, "end", name="to", default=None)
    bins: int = parameter(
        integer(1, CELLS_MAX),
        "intervals of time, at most; of all of a running session up to 1,024",
        default=400,
    )
    rows: int = parameter(integer(1, ROWS_MAX), "rows, at most", default=256)
    figure: str = parameter(choice(FIGURES), "which bytes", default="requested")
    device_type: str | None = parameter(
        DEVICE_TYPE, "type of device; absent: an accelerator where there is one", default=None
    )
    mode: str = parameter(choice(MODES), "bytes, bytes against the median, or headroom", default="abs")
    group: str = parameter(choice(GROUPS), "whose median", default="job")
    order: str = parameter(choice(ORDERS), "order of the rows", default="rank")
    limit_bytes: int | None = parameter(BYTES, "marks the cells above", default=None)
    steps_of: int | None = parameter(RANK, "whose steps are listed", default=None)
    since_ns: int | None = parameter(
        TIME,
        "cells from this instant on alone, if the scale is still low_bytes to high_bytes",
        name="since",
        default=None,
    )
    low_bytes: int | None = parameter(SCALE, "lowest of the scale of the cells that are known", default=None)
    high_bytes: int | None = parameter(SCALE, "highest of it", default=None)


def heat(reading: Reading, asked: HeatAsked) -> pa.Table:
    """Rows of ranks, from top to bottom.

    Columns: ranks (list: those of the row), top_rank (which of them stood furthest out in the range),
    top_bytes (by how many: the value of the row that matters most; NULL where nothing is known), group (of
    the order; NULL where not known), cells (uint8, one an interval from first_bin on), above (bits, the
    lowest first: the highest of the row is over limit_bytes; NULL without one), restarts (list of intervals
    in which a later attempt begins), gaps (list: first and last interval of each gap). Facts: asked (the
    parameters, with what stood for those that were absent), bins, first_bin
    (a multiple of 8), mode, figure, low_bytes, high_bytes and root (how a cell is read, see
    :func:`quantised`), num_ranks, steps (list of [step, time_ns]), steps_of, gaps_cut (there are more than
    GAPS_MAX gaps: these are those of the lowest ranks).
    """
    from_ns, until_ns, count = _range(reading, asked)
    device_type = asked.device_type or first_device_type(reading)
    places = Places.of(reading)
    bins = rank_matrix.bins_of(
        reading.session.origin_ns + from_ns,
        reading.session.origin_ns + until_ns,
        count,
        len(places.rows),
    )
    matrix = matrix_of(reading, places, bins, asked.mode, device_type, asked.figure)
    values, known = values_of(matrix, places, asked.mode, asked.group)
    furthest = weights(values, known, asked.mode)
    order, groups = ordered(matrix.ranks, furthest, places, asked.order)
    begins = row_begins(len(order), asked.rows)
    pooled = pooled_rows(values[order], known[order], begins, asked.mode)
    cells, low, high = quantised(*pooled, asked.mode)
    first_bin = _first_bin(asked, bins, from_ns, low, high)
    steps, steps_of = _steps(reading, places, asked, bins)
    ranks = matrix.ranks[order]
    gaps, gaps_cut = _gaps(reading, places, bins, ranks, begins)
    found = pa.table(
        {
            "ranks": _lists([part.tolist() for part in np.split(ranks, begins[1:])] if len(ranks) else []),
            "top_rank": pa.array(_top_ranks(furthest[order], ranks, begins), pa.int32()),
            "top_bytes": pa.array(_furthest(*pooled, asked.mode), pa.int64()),
            "group": pa.array([groups[begin] for begin in begins], pa.string()),
            "cells": _fixed(cells[:, first_bin:]),
            "above": _above(matrix, order, begins, asked, first_bin),
            "restarts": _lists(_restarts(places, bins, ranks, begins)),
            "gaps": _lists(gaps),
        }
    )
    return reading.answer(
        found,
        exact=matrix.exact,
        source=matrix.source,
        asked={
            "from": from_ns,
            "to": until_ns,
            "bins": count,
            "rows": asked.rows,
            "figure": asked.figure,
            "device_type": device_type,
            "mode": asked.mode,
            "order": asked.order,
        },
        bins=bins.count,
        first_bin=first_bin,
        mode=asked.mode,
        figure=asked.figure,
        low_bytes=low,
        high_bytes=high,
        root=asked.mode == "median",
        num_ranks=len(ranks),
        steps=steps,
        steps_of=steps_of,
        gaps_cut=gaps_cut,
    )


def matrix_of(
    reading: Reading, places: Places, bins: Bins, mode: str, device_type: str, figure: str
) -> RankMatrix:
    """What a mode begins with: bytes held, or headroom."""
    if mode == "headroom":
        return rank_matrix.headroom(reading, places, bins, device_type)
    return rank_matrix.held(reading, places, bins, device_type, figure)


def values_of(
    matrix: RankMatrix, places: Places, mode: str, group: str
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Bytes by rank and interval as the mode shows them, and which are known."""
    if mode != "median" or not len(matrix.ranks):
        return matrix.cells, matrix.known
    against = np.where(matrix.known, matrix.cells, 0) - rank_matrix.medians(
        matrix, places.named(matrix.ranks, group)
    )
    return np.where(matrix.known, np.rint(against), 0).astype(np.int64), matrix.known


def weights(values: Integers, known: npt.NDArray[np.bool_], mode: str) -> Integers:
    """How much each rank matters: its highest, its furthest from the median, or its lack of headroom."""
    if not values.shape[1]:
        return np.full(len(values), UNKNOWN)
    mattering = {"median": np.abs(values), "headroom": -values}.get(mode, values)
    found: Integers = np.where(known, mattering, UNKNOWN).max(axis=1)
    return found


def ordered(
    ranks: Integers, furthest: Integers, places: Places, order: str
) -> tuple[Integers, list[str | None]]:
    """The places of the ranks from top to bottom, and there the group of each that the order is by."""
    if order == "rank":
        return np.arange(len(ranks)), [None] * len(ranks)
    if order == "peak":
        return np.lexsort((ranks, ~furthest)), [None] * len(ranks)
    names = places.named(ranks, order)
    in_order = sorted(range(len(names)), key=lambda i: (_sorting(names[i]), ranks[i]))
    return np.array(in_order, np.int64), [names[i] for i in in_order]


def row_begins(num_ranks: int, rows: int) -> Integers:
    """Where each row begins: as many rows as ranks, or as were asked for, each with about as many ranks."""
    count = min(num_ranks, rows)
    return np.arange(count, dtype=np.int64) * num_ranks // max(1, count)


def pooled_rows(
    values: Integers, known: npt.NDArray[np.bool_], begins: Integers, mode: str
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Of the ranks of each row, in each interval, the value that matters most; and where there is one."""
    if not len(begins):
        return values, known
    some: npt.NDArray[np.bool_] = np.logical_or.reduceat(known, begins, axis=0)
    most = np.maximum.reduceat(np.where(known, values, UNKNOWN), begins, axis=0)
    if mode == "abs":
        return np.where(some, most, 0), some
    least = np.minimum.reduceat(np.where(known, values, -UNKNOWN - 1), begins, axis=0)
    most, least = np.where(some, most, 0), np.where(some, least, 0)
    return (least if mode == "headroom" else np.where(most >= -least, most, least)), some


def quantised(values: Integers, known: npt.NDArray[np.bool_], mode: str) -> tuple[Cells, int, int]:
    """Cells, and what the lowest and the highest of the scale mean.

    Bytes and headroom: 1 + floor(254 x (value - low) / (high - low)). Against the median: 128 +- the rounded
    127 x sqrt(|value| / high), so that a small difference shows beside a large one; low is -high.
    """
    if not known.any():
        return np.zeros(values.shape, np.uint8), 0, 0
    if mode == "median":
        high = max(1, int(np.abs(values[known]).max()))
        off = np.rint(127 * np.sqrt(np.abs(values) / high)).astype(np.int64)
        return np.where(known, 128 + np.sign(values) * off, 0).astype(np.uint8), -high, high
    low, high = int(values[known].min()), int(values[known].max())
    scaled = 1 + (np.where(known, values, low) - low) * 254 // max(1, high - low)
    return np.where(known, scaled, 0).astype(np.uint8), low, high


def _sorting(name: str | None) -> tuple[int, int, str]:
    """Numbers by value, then names, then what is not known."""
    if name is None:
        return 2, 0, LAST
    return (0, int(name), "") if name.isascii() and name.isdigit() else (1, 0, name)


def _top_ranks(furthest: Integers, ranks: Integers, begins: Integers) -> list[int]:
    ends = [*begins[1:].tolist(), len(ranks)][: len(begins)]
    return [
        int(ranks[begin + int(np.argmax(furthest[begin:end]))])
        for begin, end in zip(begins.tolist(), ends, strict=True)
    ]


def _furthest(values: Integers, known: npt.NDArray[np.bool_], mode: str) -> list[int | None]:
    if not values.size:
        return [None] * len(values)
    mattering = {"median": np.abs(values), "headroom": -values}.get(mode, values)
    place = np.where(known, mattering, UNKNOWN).argmax(axis=1)
    row = np.arange(len(values))
    return [
        value if some else None
        for value, some in zip(values[row, place].tolist(), known[row, place].tolist(), strict=True)
    ]


def _range(reading: Reading, asked: HeatAsked) -> tuple[int, int, int]:
    """Begin and end of the range, and its intervals at most."""
    from_ns, until_ns, count = asked.from_ns, asked.until_ns, asked.bins
    if from_ns is None or until_ns is None:
        whole = WholeSession.of(reading)
        if from_ns is None and until_ns is None:
            return whole.drawn(count)
        from_ns = whole.first_ns if from_ns is None else from_ns
        until_ns = whole.last_ns if until_ns is None else until_ns
    check_range(from_ns, until_ns)
    return from_ns, until_ns, count


def _first_bin(asked: HeatAsked, bins: Bins, from_ns: int, low: int, high: int) -> int:
    """The first interval whose cells are sent: they may be joined with those before of the same scale."""
    if asked.since_ns is None or (asked.low_bytes, asked.high_bytes) != (low, high):
        return 0
    (place,) = bins.place(np.array([asked.since_ns - from_ns + bins.from_ns], np.int64)).tolist()
    return int(max(0, min(place, bins.count - 1)) // 8 * 8)  # where a byte of bits begins


def _above(
    matrix: RankMatrix, order: Integers, begins: Integers, asked: HeatAsked, first_bin: int
) -> pa.Array:
    if asked.limit_bytes is None or asked.mode == "headroom" or not len(begins):
        return pa.nulls(len(begins), pa.list_(pa.uint8()))
    highest = np.maximum.reduceat(matrix.cells[order, first_bin:], begins, axis=0)
    return _fixed(np.packbits(highest > asked.limit_bytes, axis=1, bitorder="little"))


def _restarts(places: Places, bins: Bins, ranks: Integers, begins: Integers) -> list[list[int]]:
    """By row the intervals in which a rank begins again."""
    first: dict[int, int] = {}
    for rank, attempt in places.rows:
        first[rank] = min(attempt, first.get(rank, attempt))
    found: list[set[int]] = [set() for _ in begins]
    row_of = _row_of(ranks, begins)
    for (rank, attempt), row in places.rows.items():
        if attempt > first[rank] and rank in row_of and row["started_ns"] is not None:
            bin_ = int(bins.place(np.array([row["started_ns"]], np.int64))[0])
            if 0 <= bin_ < bins.count:
                found[row_of[rank]].add(bin_)
    return [sorted(each) for each in found]


def _gaps(
    reading: Reading, places: Places, bins: Bins, ranks: Integers, begins: Integers
) -> tuple[list[list[int]], bool]:
    """By row the first and the last interval of each gap, one after the other; whether there are more."""
    found: list[list[int]] = [[] for _ in begins]
    row_of = _row_of(ranks, begins)
    gaps = reading.share("gaps", at_most=GAPS_MAX + 1).to_pylist()
    for gap in gaps[:GAPS_MAX]:
        if gap["rank"] not in row_of or gap["why"] == "device_off":
            continue
        from_ns = gap["from_ns"]
        if from_ns is None:  # it lies at the beginning of the process
            process = places.rows.get((gap["rank"], gap["attempt"]), {})
            from_ns = process.get("started_ns") or bins.from_ns
        until_ns = bins.until_ns if gap["until_ns"] is None else max(gap["until_ns"], from_ns)
        begin, end = bins.place(np.array([from_ns, until_ns], np.int64)).tolist()
        if end >= 0 and begin < bins.count:
            found[row_of[gap["rank"]]] += [max(begin, 0), min(end, bins.count - 1)]
    return found, len(gaps) > GAPS_MAX


def _steps(
    reading: Reading, places: Places, asked: HeatAsked, bins: Bins
) -> tuple[list[list[int]], int | None]:
    """Steps of a rank as [step, time since the session's start], and the rank."""
    rank = asked.steps_of
    if rank is None:
        rank = reading.share("heat_steps_rank")["rank"][0].as_py()
    if rank is None:
        return [], None
    rows = reading.ask(
        "heat_steps",
        rank=rank,
        lives=places.lives_text({rank}),
        from_ns=bins.from_ns,
        until_ns=bins.until_ns,
        at_most=STEPS_MAX,
    )
    found = reading.relative(rows, "ended_ns").to_pylist()
    return [[row["step"], row["ended_ns"]] for row in found], rank if found else None


def _row_of(ranks: Integers, begins: Integers) -> dict[int, int]:
    rows = np.searchsorted(begins, np.arange(len(ranks)), side="right") - 1
    return dict(zip(ranks.tolist(), rows.tolist(), strict=True))


def _lists(values: Sequence[Sequence[int]]) -> pa.Array:
    return pa.array(values, pa.list_(pa.int32()))


def _fixed(cells: npt.NDArray[Any]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(cells.ravel()), cells.shape[1])


ROUTES: Final = (SessionRoute(path="/heat", parameters=HeatAsked, answer=heat),)
