"""Arrow columns out of numpy arrays, without a Python object for each row.

Stage: pairing; shipper process. Names go out dictionary-encoded: the dictionary holds the few texts that
occur, made by one lookup each; the indices come by numpy. ABSENT (-1) becomes NULL where asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from rankmem_protos.column_bounds import text_bytes_max
from rankmem_protos.tables import NAME, TABLES, Column
from rankmem_ship.pairing.state import ABSENT, Array
from rankmem_ship.spool_reader.string_table import StringTable

TEXT_BYTES_MAX: Final = 64 << 10
"""Of a text in a row of facts, such as a command with all its arguments; the rest is cut off."""
_CUT_BYTES_MAX: Final = 40
"""Of the words that mark the cut."""


def ints(values: Array, *, null: Array | None = None) -> pa.Array:
    """An int64 column; NULL where ``null`` is true."""
    return pa.array(values.astype(np.int64, copy=False), type=pa.int64(), mask=_mask(null))


def known(values: Array) -> pa.Array:
    """An int64 column; NULL where ABSENT."""
    return ints(values, null=values == ABSENT)


def smalls(values: Array, *, null: Array | None = None) -> pa.Array:
    """An int32 column."""
    return pa.array(values.astype(np.int32, copy=False), type=pa.int32(), mask=_mask(null))


def flags(values: Array) -> pa.Array:
    """A boolean column."""
    return pa.array(values)


def nulls(length: int, kind: pa.DataType) -> pa.Array:
    """A column without a value."""
    return pa.nulls(length, kind)


def null_names(length: int) -> pa.Array:
    """A name column without a value."""
    return null_column(NAME, length)


def constant_name(text: str, length: int) -> pa.Array:
    """A name column with one value in every row."""
    indices = pa.array(np.zeros(length, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([text], pa.string()))


def coded_names(codes: Array, texts: Sequence[str], *, null: Array | None = None) -> pa.Array:
    """A name column out of numbers that index ``texts``; NULL where ``null`` or a code is below 0."""
    absent = codes < 0 if null is None else null | (codes < 0)
    if absent.any():
        if absent.all():
            return null_names(len(codes))
        codes = np.where(absent, 0, codes)
    indices = pa.array(codes.astype(np.int32, copy=False), mask=_mask(absent))
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))


def string_names(ids: Array, strings: StringTable) -> pa.Array:
    """A name column out of string ids of a spool; NULL where 0."""
    if not ids.any():
        return null_names(len(ids))
    used, codes = dense_codes(ids)
    texts = [strings.name(int(i)) for i in used]
    return coded_names(np.where(ids == 0, ABSENT, codes), texts or [""])


def dense_codes(ids: Array) -> tuple[Array, Array]:
    """The different ids, ascending, and for each id its place among them; ids are small numbers."""
    if not len(ids):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    seen = np.zeros(int(ids.max()) + 1, np.bool_)
    seen[ids] = True
    used = np.flatnonzero(seen)
    lookup = np.zeros(len(seen), np.int64)
    lookup[used] = np.arange(len(used))
    return used, lookup[ids]


def record_batch(table: str, columns: Mapping[str, pa.Array], length: int) -> pa.RecordBatch:
    """Rows of a declared table; a column that is not given is NULL in every row."""
    schema = TABLES[table].arrow_schema()
    arrays = [columns.get(field.name, None) for field in schema]
    filled = [
        null_column(field.type, length) if array is None else array
        for field, array in zip(schema, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(filled, schema=schema)


def rows_of(table: str, rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    """A few rows given as mappings; for tables of facts, never for events."""
    schema = TABLES[table].arrow_schema()
    arrays = [
        pa.array([_shortened(column, row.get(column.name)) for row in rows], type=_plain(column.type))
        for column in TABLES[table].columns
    ]
    encoded = [a.dictionary_encode() if f.type == NAME else a for a, f in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(encoded, schema=schema)


def null_column(kind: pa.DataType, length: int) -> pa.Array:
    """A column of a declared type without a value."""
    if kind == NAME:
        indices = pa.nulls(length, pa.int32())
        return pa.DictionaryArray.from_arrays(indices, pa.array([], pa.string()))
    return pa.nulls(length, kind)


def _shortened(column: Column, value: object) -> object:
    """A text that its column may hold: what is longer is cut, and marked so."""
    if not isinstance(value, str):
        return value
    most = min(text_bytes_max(column), TEXT_BYTES_MAX)
    if len(value) <= most // 4:  # the usual case, without a copy: UTF-8 has at most 4 bytes a letter
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    text = value.encode("utf-8", "replace")
    if len(text) <= most:
        return text.decode()
    kept = text[: most - _CUT_BYTES_MAX]
    return f"{kept.decode('utf-8', 'ignore')} … ({len(text) - len(kept)} bytes more)"


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind == NAME else kind


def _mask(null: Array | None) -> Array | None:
    return null if null is not None and null.any() else None
