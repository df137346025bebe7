"""What a stream declares is known before anything is allocated; what lies is refused, never believed."""

from __future__ import annotations

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from own_memory import highest_bytes
from rankmem_aggregator.ingest.batch import DECODED_BYTES_MAX, Spool, declared_bytes, decode_batch
from rankmem_protos.arrow_sizes import MalformedError, decoded_bytes
from rankmem_protos.arrow_wire import decode_rows, encode_rows
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import TABLES
from sample_batches import RankSource

GROWTH_MAX = 64 << 20
STEP = TABLES["step"].arrow_schema()


def spool_of(source: RankSource) -> Spool:
    return Spool(spool_id=source.spool_id, session_id=source.session_id, attempt=0, rank=source.rank)


def steps(count: int, optimizer: str = "AdamW", session_id: str = "s") -> pa.Table:
    names = {"session_id": session_id, "optimizer": optimizer}
    columns = [
        pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([names[field.name]]))
        if pa.types.is_dictionary(field.type)
        else pa.array([0] * count, field.type)
        for field in STEP
    ]
    return pa.table(columns, schema=STEP)


def with_declared(data: bytes, declared: int) -> bytes:
    """The stream, its largest compressed buffer claiming another size."""
    whole = bytearray(data)
    for place in range(len(whole) - 8, -1, -1):  # lz4 frames begin with this magic, after the length
        if whole[place + 8 : place + 12] == b"\x04\x22\x4d\x18":
            whole[place : place + 8] = struct.pack("<q", declared)
            return bytes(whole)
    raise AssertionError("no compressed buffer")


def test_what_is_declared_is_what_decoding_takes() -> None:
    for entry in RankSource().batch(2000).tables:
        decoded = decode_rows(entry.table, entry.arrow_ipc).get_total_buffer_size()
        assert decoded_bytes(entry.arrow_ipc) == decoded


def test_a_bomb_is_refused_by_what_it_declares_before_anything_is_allocated() -> None:
    data = with_declared(encode_rows(steps(50_000)), 2**45)
    message = Batch(spool_id="x", tables=[TableRows(table="step", arrow_ipc=data)])
    before = highest_bytes()
    with pytest.raises(RankmemError, match="decoded bytes, at most") as refused:
        declared_bytes(message)
    assert refused.value.code is Code.INVALID
    assert highest_bytes() - before < GROWTH_MAX


def test_small_streams_that_are_large_together_are_refused() -> None:
    entry = TableRows(table="step", arrow_ipc=encode_rows(steps(1_000_000)))
    many = 1 + DECODED_BYTES_MAX // decoded_bytes(entry.arrow_ipc)
    message = Batch(spool_id="x", tables=[entry] * many)
    assert message.ByteSize() < 4 << 20, "it would pass the port"
    with pytest.raises(RankmemError, match="decoded bytes, at most"):
        declared_bytes(message)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (steps(1, optimizer="x" * 100_000), "step.optimizer has a text of 100000 bytes"),
        (steps(100_000, optimizer="x" * 60_000), "step.optimizer has texts of 6000000000 bytes"),
        (steps(100_000, session_id="x" * 60_000), "step.session_id has texts of 6000000000 bytes"),
    ],
)
def test_long_texts_are_refused_before_they_are_expanded(rows: pa.Table, why: str) -> None:
    source = RankSource(session_id="s")
    message = Batch(spool_id="x", tables=[TableRows(table="step", arrow_ipc=encode_rows(rows))])
    before = highest_bytes()
    with pytest.raises(RankmemError, match=why):
        decode_batch(message, spool_of(source))
    assert highest_bytes() - before < GROWTH_MAX


@given(place=st.integers(0, 4000), value=st.binary(min_size=1, max_size=8))
def test_damaged_headers_are_refused_or_read_and_never_anything_else(place: int, value: bytes) -> None:
    data = bytearray(encode_rows(steps(100)))
    data[place % len(data) : place % len(data) + len(value)] = value
    with contextlib.suppress(MalformedError):
        assert decoded_bytes(bytes(data)) >= 0


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_nothing(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        assert decoded_bytes(data) == 0
