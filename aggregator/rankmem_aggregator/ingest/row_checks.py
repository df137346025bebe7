"""Whether the rows of a batch may be stored: texts, numbers, and their owner.

Stage: between ingest call and writer, in a decoding thread. In: the rows of one table as decoded, and their
spool; out: nothing, or a refusal. Rows that pass can be read by every view: a stored row must never make a
query fail. A pass over each column of numbers and no copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.column_bounds import number_bounds, text_bytes_max
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import BUCKET_RECORDS, MEMORY_BUCKET, MEMORY_EVENT, OOM, TABLES, Table

EXPANDED_BYTES_MAX: Final = 1 << 30
"""Of a column's texts, counted for each row: a name of 64 KiB in a million rows would be 64 GiB on disk."""

_FAILED: Final = (0, NUMBER_MAX)
"""Bytes that a failed request may have asked for: nothing adds them up."""


def check_texts(table: Table, rows: pa.Table) -> None:
    """Checks that no text is too long, nor all of a column together. Before anything expands a dictionary.

    Raises:
        RankmemError: INVALID, with the column.
    """
    for column, values in zip(table.columns, rows.columns, strict=True):
        is_name = pa.types.is_dictionary(values.type)
        if not is_name and not pa.types.is_string(values.type):
            continue
        most = text_bytes_max(column)
        expanded = 0
        for chunk in values.chunks:
            lengths = pc.binary_length(chunk.dictionary if is_name else chunk)
            longest = pc.max(lengths).as_py() or 0
            if longest > most:
                raise RankmemError(
                    Code.INVALID, f"{table.name}.{column.name} has a text of {longest} bytes, at most {most}"
                )
            expanded += _expanded_bytes(chunk, lengths, longest) if is_name else 0
        if expanded > EXPANDED_BYTES_MAX:
            raise RankmemError(
                Code.INVALID,
                f"{table.name}.{column.name} has texts of {expanded} bytes, at most {EXPANDED_BYTES_MAX}",
            )


def check_values(
    table: Table, rows: pa.Table, owner: Mapping[str, str | int], bucket_records: int = BUCKET_RECORDS
) -> None:
    """Checks that every value is one that its column may hold, and every row the owner's.

    Args:
        table: as declared.
        rows: as decoded, of its schema.
        owner: the values of these columns in every row.
        bucket_records: positions of the log in a row of memory_bucket, at most.

    Raises:
        RankmemError: INVALID, with the column.
    """
    bounds = _BOUNDS[table.name]
    for column, values in zip(table.columns, rows.columns, strict=True):
        if not column.nullable and _has_null(values):
            raise RankmemError(Code.INVALID, f"{table.name}.{column.name} has a NULL, which it must not have")
        if column.name in bounds:
            least, most = bounds[column.name]
            if table is MEMORY_EVENT and column.name == "size_bytes":
                values = _without_failed(rows, values, most)
            check_range(table, column.name, values, least, most)
    if table is MEMORY_BUCKET:
        _check_buckets(rows, bucket_records)
    for name in owner.keys() & set(table.column_names()):
        _check_equal(table, name, rows, owner[name])


def _without_failed(rows: pa.Table, sizes: pa.ChunkedArray, most: int) -> pa.ChunkedArray:
    """The sizes of events without failed requests, which may be anything up to NUMBER_MAX."""
    if (pc.max(sizes).as_py() or 0) <= most:
        return sizes
    failed = pc.equal(rows.column("action").cast(pa.string()), "oom")
    check_range(MEMORY_EVENT, "size_bytes", sizes.filter(failed), *_FAILED)
    return sizes.filter(pc.invert(failed))


def check_range(table: Table, name: str, values: pa.ChunkedArray, least: int, most: int) -> None:
    """Checks that every value lies within the two, both included; NULL does.

    Raises:
        RankmemError: INVALID, with the column.
    """
    found = pc.min_max(values).as_py()
    if found["min"] is not None and (found["min"] < least or found["max"] > most):
        raise RankmemError(
            Code.INVALID,
            f"{table.name}.{name} holds {found['min']} to {found['max']}, must be within {least} and {most}",
        )


def check_positions(events: pa.Table) -> None:
    """Checks that no two events of a device have one position of the log.

    Raises:
        RankmemError: INVALID, with a position that occurs twice.
    """
    positions = events.column("seq").to_numpy()
    if len(positions) < 2 or (np.diff(positions) > 0).all():
        return  # as the tap's log has them: one event a position, in order
    found = pa.table({"seq": events.column("seq"), "device": events.column("device").cast(pa.string())})
    times = found.group_by(["seq", "device"]).aggregate([([], "count_all")])
    if times.num_rows < len(positions):
        twice = times.filter(pc.greater(times.column("count_all"), 1)).slice(0, 1).to_pylist()[0]
        raise RankmemError(
            Code.INVALID, f"memory_event has position {twice['seq']} of {twice['device']} more than once"
        )


def _check_buckets(rows: pa.Table, records: int) -> None:
    """Checks that a bucket and its peak lie in one part of the log: the job's peak is searched by it."""
    first, last, peak = (
        pc.shift_right(rows.column(name), records.bit_length() - 1)
        for name in ("seq_first", "seq_last", "requested_peak_seq")
    )
    if not pc.all(pc.and_(pc.equal(first, last), pc.equal(first, peak)), min_count=0).as_py():
        raise RankmemError(
            Code.INVALID,
            f"memory_bucket has a row over more than one range of {records} positions",
            "use the same version of rankmem on both ends",
        )


def _bounds_by_column(table: Table) -> dict[str, tuple[int, int]]:
    return {column.name: bounds for column in table.columns if (bounds := number_bounds(column)) is not None}


_BOUNDS: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    table.name: _bounds_by_column(table) for table in TABLES.values()
} | {OOM.name: {**_bounds_by_column(OOM), "size_bytes": _FAILED}}
"""By table and column."""


def _expanded_bytes(chunk: pa.DictionaryArray, lengths: pa.Array, longest: int) -> int:
    """Bytes of the texts, counted for each row; a bound where that is small enough."""
    bound = longest * len(chunk)
    return bound if bound <= EXPANDED_BYTES_MAX else pc.sum(lengths.take(chunk.indices)).as_py() or 0


def _has_null(values: pa.ChunkedArray) -> bool:
    """Whether a value is NULL, also by a dictionary whose index is valid and whose value is not."""
    if values.null_count:
        return True
    if not pa.types.is_dictionary(values.type):
        return False
    return any(
        chunk.dictionary.null_count and pc.any(pc.is_null(chunk.dictionary.take(chunk.indices))).as_py()
        for chunk in values.chunks
    )


def _check_equal(table: Table, name: str, rows: pa.Table, expected: str | int) -> None:
    """Checks that every value is the spool's. Usually a dictionary of one value: no pass over the rows."""
    for chunk in rows.column(name).chunks:
        if pa.types.is_dictionary(chunk.type):
            if len(chunk.dictionary) == 1 and chunk.dictionary[0].as_py() == expected:
                continue
            chunk = chunk.dictionary.take(chunk.indices)
        found = pc.min_max(chunk).as_py()
        if len(chunk) and (found["min"] != expected or found["max"] != expected):
            raise RankmemError(
                Code.INVALID,
                f"{table.name}.{name} holds {found['min']!r} to {found['max']!r}, "
                f"but the spool was opened as {expected!r}",
                "send rows of one rank in its own spool",
            )
