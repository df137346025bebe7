"""Writes one data file of a lake.

Stage: write. In: Arrow batches in the order of the file; out: a Parquet file, whole or not at all. Integers
have delta encodings, text and what repeats a dictionary, pages a checksum (``check`` compares it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.layout import ROW_GROUP_ROWS, file_schema
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Table

ZSTD_LEVEL: Final = 1
"""Levels 1 to 9 give nearly the same bytes after delta encodings, at the same CPU time."""
_GROUPS_AT_ONCE: Final = 4
"""Row groups that are gathered before they are written: a few MiB."""
REPEATING: Final = frozenset(
    {
        "address",
        "size_bytes",
        "freed_bytes",
        "attempt",
        "rank",
        "stream",
        "thread",
        "step",
        "stack_id",
        "forward_stack_id",
        "width_s",
    }
)
"""Integers with few values: a dictionary is smaller than deltas. Allocators give the same addresses again."""
REPEATING_ENDS: Final = ("last_bytes", "peak_bytes")
"""Likewise columns whose names end so: a step comes to the totals of the steps before it."""


def write_rows(files: LakeFiles, path: str, table: Table, rows: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    """Writes a file of a table; none where there are no rows.

    Args:
        files: the lake.
        path: below it.
        table: whose declared columns the rows have.
        rows: ordered, at least one batch.

    Returns:
        Its rows and its bytes; 0 and 0 without a file.

    Raises:
        RankmemError: INVALID for rows without a value that they must have.
    """
    first = next((batch for batch in rows if batch.num_rows), None)
    if first is None:
        return 0, 0
    schema = _stored_schema(table, first)
    num_rows = 0
    with files.output(path) as out:
        counted = _Counted(out)
        with pq.ParquetWriter(pa.PythonFile(counted, mode="w"), schema, **_settings(schema)) as writer:
            for part in _whole_groups(first, rows, schema):
                writer.write_table(part, row_group_size=ROW_GROUP_ROWS)
                num_rows += part.num_rows
    return num_rows, counted.size_bytes


def _stored_schema(table: Table, first: pa.RecordBatch) -> pa.Schema:
    """The schema of a file. Columns that must have a value say so: a reader then decodes no levels, which
    took half its time where values are few. One that an older database lacks is NULL all the same."""
    required = {column.name for column in table.columns if not column.nullable}
    return pa.schema(
        field.with_nullable(field.name not in required or first.column(field.name).null_count > 0)
        for field in file_schema(table)
    )


def _whole_groups(
    first: pa.RecordBatch, rows: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows in tables of whole row groups, but for the last."""
    least = _GROUPS_AT_ONCE * ROW_GROUP_ROWS
    waiting, count = [_cast(first, schema)], first.num_rows
    for batch in rows:
        waiting.append(_cast(batch, schema))
        count += batch.num_rows
        if count >= least:
            gathered = pa.concat_tables(waiting)
            whole = count - count % ROW_GROUP_ROWS
            yield gathered.slice(0, whole)
            waiting, count = [gathered.slice(whole)], count - whole
    if count:
        yield pa.concat_tables(waiting)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    try:
        return pa.Table.from_batches([batch]).select(schema.names).cast(schema)
    except ValueError as exc:
        raise RankmemError(
            Code.INVALID,
            f"the database has rows that cannot be: {exc}",
            "another program wrote them: record or import its sessions again",
        ) from exc


def _settings(schema: pa.Schema) -> dict[str, Any]:
    repeating = [f.name for f in schema if pa.types.is_string(f.type) or _repeats(f.name)]
    deltas = [f.name for f in schema if pa.types.is_integer(f.type) and f.name not in repeating]
    return {
        "compression": "zstd",
        "compression_level": ZSTD_LEVEL,
        "use_dictionary": repeating or False,
        "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED") or None,
        "write_page_checksum": True,
        "data_page_version": "2.0",
    }


def _repeats(column: str) -> bool:
    return column in REPEATING or column.endswith(REPEATING_ENDS)


class _Counted:
    """A file that counts what is written: an object store does not say."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Writes bytes."""
        written = bytes(data)  # deltalake's streams take nothing else
        self.size_bytes += len(written)
        self._out.write(written)
        return len(written)

    def tell(self) -> int:
        """Bytes so far."""
        return self.size_bytes

    def flush(self) -> None:
        """Does nothing: the owner of the file does."""

    def close(self) -> None:
        """Closes nothing: the owner of the file does."""
        self.closed = True
