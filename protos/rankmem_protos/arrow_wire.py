"""Record batches to bytes and back, as TableRows carries them.

Stage: wire, both ends. An Arrow IPC stream with compressed buffers; decoding checks the bytes
against the declared schema and a size limit before anything is kept.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rankmem_protos.arrow_sizes import MalformedError, decoded_bytes
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import TABLES

COMPRESSION: Final = "lz4"
"""Codec of the buffers. Against zstd twice the bytes (45 an event, all tables) for half the CPU time on both
ends (0.23 instead of 0.50 s a million events, measured): CPU is what runs short, beside trainers and in
ingest."""

_READING: Final = pa.ipc.IpcReadOptions(use_threads=False)
"""Arrow's own threads double the CPU on batches of this size (measured); streams run side by side anyway."""


def encode_rows(rows: pa.Table | pa.RecordBatch) -> bytes:
    """The rows as an Arrow IPC stream with compressed buffers."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=COMPRESSION, use_threads=False)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


def decoded_size(table_name: str, data: bytes) -> int:
    """Bytes that :func:`decode_rows` will allocate for these rows, as they declare it; allocates nothing.

    Raises:
        RankmemError: INVALID for bytes that are not Arrow.
    """
    try:
        return decoded_bytes(data)
    except MalformedError as exc:
        raise RankmemError(
            Code.INVALID, f"rows for {table_name[:64]!r} are not a readable Arrow stream: {exc}"
        ) from exc


def decode_rows(table_name: str, data: bytes) -> pa.Table:
    """The rows of one table, validated against its declared schema.

    Raises:
        RankmemError: INVALID for an unknown table, bytes that are not Arrow, or another schema.
    """
    table = TABLES.get(table_name)
    if table is None:
        raise RankmemError(
            Code.INVALID, f"unknown table {table_name!r}", "send only tables of rankmem_protos.tables"
        )
    try:
        with pa.ipc.open_stream(pa.py_buffer(data), options=_READING) as reader:
            expected = table.arrow_schema()
            if not reader.schema.equals(expected):
                raise RankmemError(
                    Code.INVALID,
                    f"rows for {table_name} have schema {reader.schema.names}, expected {expected.names}",
                    "use the same version of rankmem on both ends",
                )
            rows = reader.read_all()
        rows.validate(full=True)
    except MemoryError:  # Arrow's is an ArrowException as well; the rows are not at fault
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError) as exc:
        raise RankmemError(
            Code.INVALID, f"rows for {table_name} are not a readable Arrow stream: {exc}"
        ) from exc
    return rows
