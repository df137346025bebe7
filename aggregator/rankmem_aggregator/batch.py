"""A batch off the wire, decoded and checked row by row before the writer sees it.

Stage: between stream and writer. In: a ``Batch`` message and the spool it claims; out: an
:class:`IncomingBatch`, or a refusal of this batch alone. Runs in the stream's reading thread, so that
decompression of many hosts runs side by side (Arrow gives up the GIL for it). Never touches the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_protos.arrow_wire import decode_rows, decoded_size
from rankmem_protos.collector_pb2 import Batch
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import TABLES, Table

SEQUENCE_MAX: Final = 2**63 - 1
SIZE_BYTES_MAX: Final = 2**56
"""64 PiB: no device has it; larger is a corrupt record."""
TEXT_BYTES_MAX: Final = 200
"""Of a spool's or session's id. Ours have under 60."""
DECODED_BYTES_MAX: Final = 256 << 20
"""Of one batch, decoded: 30 times a full one of a training. Looked up in its headers before it is decoded."""
NAME_BYTES_MAX: Final = 64 << 10
"""Of a repeating name, such as an operator's. The tap cuts at 1,024."""
TEXT_VALUE_BYTES_MAX: Final = 1 << 20
"""Of any other text, such as a command."""
EXPANDED_BYTES_MAX: Final = 1 << 30
"""Of a column's texts, each row's counted: a name of 64 KiB in a million rows would be 64 GiB on disk."""
BATCH_ROWS_MAX: Final = 4_000_000
"""Rows of one batch over all tables; a 4 MiB message of constant columns could claim billions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """A spool as its ``OpenSpool`` named it: the log of one rank process."""

    spool_id: str
    session_id: str
    attempt: int
    rank: int

    def __post_init__(self) -> None:
        for name, text in (("spool_id", self.spool_id), ("session_id", self.session_id)):
            if not 0 < len(text.encode()) <= TEXT_BYTES_MAX:
                raise RankmemError(Code.INVALID, f"{name} {text[:TEXT_BYTES_MAX]!r} is empty or too long")
        if self.attempt >= 2**31 or self.rank >= 2**31:
            raise RankmemError(
                Code.INVALID, f"spool {self.spool_id} has attempt {self.attempt}, rank {self.rank}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingBatch:
    """Checked rows of a range of one spool."""

    spool: Spool
    batch_number: int
    sequence_first: int
    sequence_last: int
    final: bool
    rows: dict[str, pa.Table]
    """By table name; tables without rows are left out."""
    num_rows: int
    tallest_rows: int
    """Rows of its largest table: what decides how DuckDB takes a group."""
    size_bytes: int
    """Of the decoded columns: what it takes in the queue."""
    wire_bytes: int = 0
    """As it came, compressed."""

    @property
    def num_events(self) -> int:
        """Rows of memory_event."""
        events = self.rows.get("memory_event")
        return 0 if events is None else int(events.num_rows)


def declared_bytes(message: Batch) -> int:
    """Bytes that the batch will take decoded, as its headers say; nothing is decoded for it.

    Raises:
        RankmemError: INVALID for what is no Arrow, or more than DECODED_BYTES_MAX.
    """
    size_bytes = sum(decoded_size(entry.table, entry.arrow_ipc) for entry in message.tables)
    if size_bytes > DECODED_BYTES_MAX:
        raise RankmemError(
            Code.INVALID,
            f"the batch declares {size_bytes} decoded bytes, at most {DECODED_BYTES_MAX}",
            "send smaller batches",
        )
    return size_bytes


def decode_batch(message: Batch, spool: Spool) -> IncomingBatch:
    """The checked batch.

    Raises:
        RankmemError: INVALID, for this batch alone.
    """
    if not message.sequence_first <= message.sequence_last <= SEQUENCE_MAX:
        raise RankmemError(
            Code.INVALID,
            f"batch covers [{message.sequence_first}, {message.sequence_last}], which is not a range",
        )
    rows: dict[str, pa.Table] = {}
    for entry in message.tables:
        if entry.table in rows:
            raise RankmemError(
                Code.INVALID, f"batch has table {entry.table} twice", "send one stream of rows a table"
            )
        table_rows = decode_rows(entry.table, entry.arrow_ipc)
        _check_texts(TABLES[entry.table], table_rows)
        _check_rows(TABLES[entry.table], table_rows, spool)
        rows[entry.table] = table_rows
    num_rows = sum(table.num_rows for table in rows.values())
    if num_rows > BATCH_ROWS_MAX:
        raise RankmemError(
            Code.INVALID, f"batch has {num_rows} rows, at most {BATCH_ROWS_MAX}", "send smaller batches"
        )
    return IncomingBatch(
        spool=spool,
        batch_number=message.batch_number,
        sequence_first=message.sequence_first,
        sequence_last=message.sequence_last,
        final=message.final,
        rows={name: table for name, table in rows.items() if table.num_rows},
        num_rows=num_rows,
        tallest_rows=max((table.num_rows for table in rows.values()), default=0),
        size_bytes=sum(table.get_total_buffer_size() for table in rows.values()),
        wire_bytes=sum(len(entry.arrow_ipc) for entry in message.tables),
    )


def _check_texts(table: Table, rows: pa.Table) -> None:
    """No text is too long, nor all of a column together. Before anything expands a dictionary."""
    for column, values in zip(table.columns, rows.columns, strict=True):
        is_name = pa.types.is_dictionary(values.type)
        if not is_name and not pa.types.is_string(values.type):
            continue
        most = NAME_BYTES_MAX if is_name else TEXT_VALUE_BYTES_MAX
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


def _expanded_bytes(chunk: pa.DictionaryArray, lengths: pa.Array, longest: int) -> int:
    """Of the texts, each row's counted; a bound where that is small enough."""
    bound = longest * len(chunk)
    return bound if bound <= EXPANDED_BYTES_MAX else pc.sum(lengths.take(chunk.indices)).as_py() or 0


def _check_rows(table: Table, rows: pa.Table, spool: Spool) -> None:
    for column, values in zip(table.columns, rows.columns, strict=True):
        if not column.nullable and _has_null(values):
            raise RankmemError(Code.INVALID, f"{table.name}.{column.name} has a NULL, which it must not have")
        if column.name == "size_bytes":
            _check_range(table, column.name, values, 0, SIZE_BYTES_MAX)
    names = table.column_names()
    if "session_id" in names:
        _check_equal(table, "session_id", rows, spool.session_id)
    if "rank" in names:
        _check_equal(table, "attempt", rows, spool.attempt)
        _check_equal(table, "rank", rows, spool.rank)
    if "spool_id" in names:
        _check_equal(table, "spool_id", rows, spool.spool_id)


def _has_null(values: pa.ChunkedArray) -> bool:
    """Also a dictionary whose used values are null: its indices are valid, its values are not."""
    if values.null_count:
        return True
    if not pa.types.is_dictionary(values.type):
        return False
    return any(
        chunk.dictionary.null_count and pc.any(pc.is_null(chunk.dictionary.take(chunk.indices))).as_py()
        for chunk in values.chunks
    )


def _check_range(table: Table, name: str, values: pa.ChunkedArray, least: int, most: int) -> None:
    found = pc.min_max(values).as_py()
    if found["min"] is not None and (found["min"] < least or found["max"] > most):
        raise RankmemError(
            Code.INVALID,
            f"{table.name}.{name} holds {found['min']} to {found['max']}, must be within {least} and {most}",
        )


def _check_equal(table: Table, name: str, rows: pa.Table, expected: str | int) -> None:
    """Every value is the spool's. Usually a dictionary of one value or a constant: no pass over the rows."""
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
