"""Rows of any declared table with the values that a test wants, as they go over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rankmem_aggregator.ingest.batch import Spool
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_protos.tables import TABLES, Column, Table

SPOOL = Spool(spool_id="0TESTSESSION-0-3-77-55", session_id="0TESTSESSION", attempt=0, rank=3)
BATCH_RANGE = (0, 999)


def rows_of(table: Table, count: int = 1, spool: Spool = SPOOL, **values: object) -> pa.Table:
    """Rows of the spool's rank: numbers are their row's position, texts the column's name, unless told."""
    fixed: Mapping[str, object] = spool.columns() | values
    columns = [_column(column, fixed, count) for column in table.columns]
    return pa.table(columns, schema=table.arrow_schema())


def batch_of(rows: Mapping[str, pa.Table], spool: Spool = SPOOL, **fields: Any) -> Batch:
    """A batch with these rows by table, of :data:`BATCH_RANGE` unless told."""
    first, last = BATCH_RANGE
    tables = [TableRows(table=name, arrow_ipc=encode_rows(data)) for name, data in rows.items()]
    told = {"batch_number": 1, "sequence_first": first, "sequence_last": last, "tables": tables} | fields
    return Batch(spool_id=spool.spool_id, **told)


def numbers_of(table: Table) -> Sequence[Column]:
    """Its columns of 64 bits."""
    return [column for column in table.columns if column.type == pa.int64()]


def all_tables() -> Sequence[Table]:
    """Every table that a shipper may send."""
    return list(TABLES.values())


def _column(column: Column, fixed: Mapping[str, object], count: int) -> pa.Array:
    plain = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.name in fixed:
        value = fixed[column.name]
        values = list(value) if isinstance(value, list) else [value] * count
    elif pa.types.is_boolean(plain):
        values = [False] * count
    elif pa.types.is_integer(plain):
        values = list(range(count))
    else:
        values = [column.name] * count
    made = pa.array(values, plain)
    return made.dictionary_encode() if pa.types.is_dictionary(column.type) else made
