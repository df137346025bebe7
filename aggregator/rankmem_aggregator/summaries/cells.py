"""Cells of time above memory_bucket: highest, lowest and last of each, at every width. Arrow in, Arrow out.

Stage: summaries, in the writer's thread; pure functions. In: rows of ``sql/summaries/level_bucket.sql`` of
some ranks; out: rows of memory_level. Each width is made from the rows of the one before, and a row of any
is what the rows of memory_bucket that begin in its cell add up to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.summaries.curves import Array
from rankmem_protos.summary_tables import LEVEL_WIDTHS_S, MEMORY_LEVEL

ROWS_SHARE: Final = 3
"""A rank's rows of memory_bucket become cells where those are so many times fewer. Rarer ones stay as they
are: less than one a second, which are quick to read."""
_NS: Final = 1_000_000_000
_UNKNOWN: Final = -1
"""Of bytes: below every figure."""
_NOT_THIS: Final = np.iinfo(np.int64).max
_MOST: Final = ("peak_bytes", "allocated_peak_bytes", "active_peak_bytes", "reserved_peak_bytes")
_LAST: Final = ("allocated_last_bytes", "active_last_bytes", "reserved_last_bytes")
_FIGURES: Final = (*_MOST[1:], *_LAST)


def cells_of(due: pa.Table, buckets: pa.Table) -> tuple[pa.Table, list[bool]]:
    """The rows of memory_level, and for each rank whether its rows are among them.

    Args:
        due: schema :data:`~rankmem_aggregator.summaries.one_pass.DUE`.
        buckets: of ``level_bucket.sql``.
    """
    devices = buckets["device"].combine_chunks().dictionary_encode()
    number = _ints(buckets, "number")
    track = number * max(1, len(devices.dictionary)) + devices.indices.to_numpy().astype(np.int64)
    columns = {
        name: _ints(buckets, name) for name in buckets.column_names if name not in ("number", "device")
    }
    order = np.lexsort((columns["seq_first"], columns["bucket_ns"], track))
    rows = {"track": track[order], **{name: values[order] for name, values in columns.items()}}
    unclear = number[order][_is_unclear(rows)]
    rows["cell_ns"] = rows.pop("bucket_ns")
    rows["low_bytes"] = rows["last_bytes"]
    levels = []
    for width_s in LEVEL_WIDTHS_S:
        width_ns = width_s * _NS
        rows = _folded(rows | {"cell_ns": rows["cell_ns"] // width_ns * width_ns})
        levels.append(rows | {"width_s": np.full(len(rows["track"]), width_s)})
    found = {name: np.concatenate([level[name] for level in levels]) for name in levels[0]}
    numbers = found["track"] // max(1, len(devices.dictionary))
    pays = _pays(due.num_rows, numbers, number)
    pays[unclear] = False
    kept = np.flatnonzero(pays[numbers])
    return _rows(
        due, devices.dictionary, {name: values[kept] for name, values in found.items()}
    ), pays.tolist()


def _is_unclear(rows: Mapping[str, Array]) -> Array:
    """Rows where a device's clock was set back, so that its cells lie in each other in the log, and a figure
    is known of some alone: which cell has the last one known could not be told from the cells."""
    steps_back = np.zeros(len(rows["track"]), np.bool_)
    steps_back[1:] = (np.diff(rows["track"]) == 0) & (np.diff(rows["seq_first"]) < 0)
    if not steps_back.any() or not any((rows[name] == _UNKNOWN).any() for name in _LAST):
        return np.zeros(len(steps_back), np.bool_)
    return steps_back


def _folded(rows: Mapping[str, Array]) -> dict[str, Array]:
    """One row for each run of equal track and cell."""
    track, cell = rows["track"], rows["cell_ns"]
    if not len(track):
        return dict(rows)
    begins = np.flatnonzero(np.append(True, (track[1:] != track[:-1]) | (cell[1:] != cell[:-1])))
    lengths = np.diff(np.append(begins, len(track)))
    found = {"track": track[begins], "cell_ns": cell[begins]}
    for name in ("seq_first", "first_ns", "low_bytes"):
        found[name] = np.minimum.reduceat(rows[name], begins)
    for name in ("seq_last", "last_ns", *_MOST):
        found[name] = np.maximum.reduceat(rows[name], begins)
    found["events"] = np.add.reduceat(rows["events"], begins)
    at_top = rows["peak_bytes"] == np.repeat(found["peak_bytes"], lengths)
    first_top = _first(np.where(at_top, rows["peak_seq"], _NOT_THIS), begins, lengths)
    found["peak_seq"], found["peak_ns"] = rows["peak_seq"][first_top], rows["peak_ns"][first_top]
    last = _first(-rows["seq_last"], begins, lengths)
    found["last_bytes"] = rows["last_bytes"][last]
    for name in _LAST:
        values = rows[name]
        if (values[last] != _UNKNOWN).all() or not (values != _UNKNOWN).any():
            found[name] = values[last]
        else:
            known = np.where(values == _UNKNOWN, _NOT_THIS, -rows["seq_last"])
            found[name] = values[_first(known, begins, lengths)]
    return found


def _first(key: Array, begins: Array, lengths: Array) -> Array:
    """Index of the least key of each run, the first among equals."""
    least = np.flatnonzero(key == np.repeat(np.minimum.reduceat(key, begins), lengths))
    found: Array = least[np.searchsorted(least, begins)]
    return found


def _pays(num_ranks: int, of_cells: Array, of_buckets: Array) -> Array:
    """For each rank whether its cells are few enough; true where there is nothing."""
    cells, buckets = (np.bincount(numbers, minlength=num_ranks) for numbers in (of_cells, of_buckets))
    found: Array = cells * ROWS_SHARE <= buckets
    return found


def _rows(due: pa.Table, devices: pa.Array, found: Mapping[str, Array]) -> pa.Table:
    number, device = np.divmod(found["track"], max(1, len(devices)))
    of_rank = {name: due[name].take(pa.array(number)) for name in ("session_id", "attempt", "rank")}
    columns = of_rank | {"device": pa.DictionaryArray.from_arrays(pa.array(device, pa.int32()), devices)}
    for name, values in found.items():
        if name != "track":
            columns[name] = pa.array(values, mask=values == _UNKNOWN if name in _FIGURES else None)
    names = MEMORY_LEVEL.column_names()
    return pa.table([columns[name] for name in names], names=names)


def _ints(table: pa.Table, name: str) -> Array:
    """A column as int64; a figure that is not known is below all others."""
    column = table[name]
    if column.null_count:
        column = column.fill_null(_UNKNOWN)
    values: Array = column.to_numpy().astype(np.int64, copy=False)
    return values
