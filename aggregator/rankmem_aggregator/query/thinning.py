"""Curves of millions of points thinned to what a screen can show, without losing a peak.

Stage: query, in the reader's process. In: times and values of one curve, in order of time. Out: the
positions of the points to keep. A curve within the limit is left unchanged. A longer one is
thinned by MinMaxLTTB (of the tsdownsample package), which keeps its shape, and besides that the highest
point of each of many equal parts stays: no peak that stood out in the whole curve is missing from the thin
one, and its height is exact. A curve is a step function: a value holds until the next point.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tsdownsample import MinMaxLTTBDownsampler

POINTS_DEFAULT: Final = 2000
"""Points of a curve: about as many as a screen is wide; 32 KB of Arrow."""
POINTS_MIN: Final = 8
"""Fewer show no shape."""

Ints = npt.NDArray[np.int64]

SCHEMA: Final = pa.schema(
    [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
"""Rows of curves: one point each, the curves one after another, each in order of time."""


def thinned(time_ns: Ints, values: Ints, points: int) -> Ints:
    """The positions to keep of a curve, ascending.

    Args:
        time_ns: does not decrease.
        values: of the same length.
        points: at most so many are kept; a curve of no more is kept whole.

    Returns:
        Positions; among them the first, the last, and the first of the highest.
    """
    length = len(values)
    if length <= points:
        return np.arange(length)
    parts = max(points // 2 - 1, 1)
    shape = MinMaxLTTBDownsampler().downsample(  # type: ignore[no-untyped-call]  # its class is not typed
        time_ns - time_ns[0], values.astype(np.float64), n_out=max(points - parts, 2)
    )
    kept: Ints = np.union1d(shape.astype(np.int64), highest_of_parts(values, parts))
    return kept


def highest_of_parts(values: Ints, parts: int) -> Ints:
    """The position of the first highest value in each of ``parts`` ranges of about equal length."""
    begins = np.unique(np.linspace(0, len(values), parts, endpoint=False).astype(np.int64))
    ends = np.append(begins[1:], len(values))
    return np.array(
        [begin + int(np.argmax(values[begin:end])) for begin, end in zip(begins, ends, strict=True)]
    )


def of_columns(table: pa.Table, *, points: int) -> tuple[list[pa.Table], bool]:
    """Each column but ``time_ns`` as a curve named after it, and whether all points were kept.

    A NULL is no point, and neither is an unchanged value, except for a curve's first and last.
    """
    time_ns = _ints(table["time_ns"])
    curves, exact = [], True
    for name in table.column_names:
        if name == "time_ns":
            continue
        known = np.flatnonzero(np.asarray(table[name].is_valid()))
        if not len(known):
            continue
        times, values = time_ns[known], _ints(table[name].drop_null())
        moved = _moved(values)
        exact &= len(moved) <= points
        curves.append(_curve(name, times[moved], values[moved], points))
    return curves, exact


def of_groups(table: pa.Table, *, points: int) -> tuple[list[pa.Table], bool]:
    """The curves of rows (group_name, time_ns, bytes) in order, and whether all points were kept.

    A NULL is no point.
    """
    table = table.filter(pc.and_(table["time_ns"].is_valid(), table["bytes"].is_valid()))
    if not table.num_rows:
        return [], True
    names = np.asarray(table["group_name"].to_pylist(), dtype=object)
    time_ns, values = _ints(table["time_ns"]), _ints(table["bytes"])
    begins = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
    curves, exact = [], True
    for begin, end in zip(begins, [*begins[1:], len(names)], strict=True):
        exact &= bool(end - begin <= points)
        curves.append(_curve(str(names[begin]), time_ns[begin:end], values[begin:end], points))
    return curves, exact


def joined(curves: list[pa.Table]) -> pa.Table:
    """One table of all curves."""
    return pa.concat_tables([SCHEMA.empty_table(), *curves])


def _curve(name: str, time_ns: Ints, values: Ints, points: int) -> pa.Table:
    kept = thinned(time_ns, values, points)
    return pa.table([time_ns[kept], pa.array([name] * len(kept), pa.string()), values[kept]], schema=SCHEMA)


def _moved(values: Ints) -> Ints:
    """The positions at which the value changes, and the last."""
    changed = np.concatenate([[True], values[1:] != values[:-1]])
    changed[-1] = True
    return np.flatnonzero(changed)


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = column.to_numpy().astype(np.int64, copy=False)
    return values
