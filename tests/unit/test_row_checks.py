"""What rows may hold: numbers that every view can add, and nobody else's name."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from rankmem_aggregator.ingest.batch import Spool, declared_bytes, decode_batch
from rankmem_protos.arrow_sizes import BUFFERS_MAX
from rankmem_protos.bounds import COUNT_MAX, NUMBER_MAX, OFFSET_NS_MAX, SIZE_BYTES_MAX
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import TABLES, Table
from wire_rows import BATCH_RANGE, SPOOL, all_tables, batch_of, numbers_of, rows_of

POSITIONS = ("seq_first", "seq_last", "requested_peak_seq")
COUNTS = {
    "template_blocks",
    "prefix_blocks",
    "evidence_blocks",
    "steady_misses",
    "audit_differences",
    "allocations",
    "events",
    "events_lost",
    "num_allocations",
    "records",
    "stacks",
}
FREE = {"address", "stack_id", "forward_stack_id", "stream"}


def decode(table: Table, **values: object) -> pa.Table:
    return decode_batch(batch_of({table.name: rows_of(table, **values)}), SPOOL).rows[table.name]


def bounds() -> Iterator[tuple[str, str, int, int]]:
    """Each bounded column with its least and most value; written down anew, not asked of the code."""
    for table in all_tables():
        for column in numbers_of(table):
            if column.name in FREE:
                continue
            least, most = -NUMBER_MAX, NUMBER_MAX
            if table.name == "memory_event" and column.name == "seq":
                least, most = BATCH_RANGE
            elif (table.name, column.name) == ("oom", "size_bytes"):
                least, most = 0, NUMBER_MAX
            elif column.name.endswith("_bytes"):
                least, most = 0, SIZE_BYTES_MAX
                if column.name == "unexplained_bytes":
                    least = -most
            elif column.name in COUNTS:
                least, most = 0, COUNT_MAX
            elif "offset_ns" in column.name:
                least, most = -OFFSET_NS_MAX, OFFSET_NS_MAX
            elif "error_ns" in column.name:
                least, most = 0, OFFSET_NS_MAX
            yield table.name, column.name, least, most


@pytest.mark.parametrize("table", all_tables(), ids=lambda table: table.name)
def test_numbers_outside_of_their_column_are_refused_with_its_name(table: Table) -> None:
    checked = [(column, least, most) for name, column, least, most in bounds() if name == table.name]
    for column, least, most in checked:
        # A bucket's positions belong together; what they must be has a test of its own.
        together = POSITIONS if column in POSITIONS and table.name == "memory_bucket" else (column,)
        if table.name != "availability":  # one row of it comes in a batch, of the batch's own range
            assert decode(table, count=2, **{name: [least, most] for name in together}).num_rows == 2
        for wrong in (least - 1, most + 1):
            with pytest.raises(RankmemError, match=rf"{table.name}\.{column} holds") as refused:
                decode(table, count=2, **{column: [least, wrong]})
            assert refused.value.code is Code.INVALID


def test_a_request_that_failed_may_have_been_for_more_than_there_is() -> None:
    table, sizes = TABLES["memory_event"], [SIZE_BYTES_MAX, 1 << 60]
    assert decode(table, count=2, action=["alloc", "oom"], size_bytes=sizes).num_rows == 2
    for actions, wrong in ((["oom", "alloc"], 1 << 60), (["alloc", "oom"], NUMBER_MAX + 1)):
        with pytest.raises(RankmemError, match=r"memory_event\.size_bytes holds"):
            decode(table, count=2, action=actions, size_bytes=[1, wrong])


@pytest.mark.parametrize(
    ("first", "last", "peak"),
    [(0, 64, 0), (0, 2**62, 0), (63, 64, 63), (64, 127, 63), (128, 64, 128), (-1, 0, 0)],
)
def test_a_bucket_over_two_parts_of_the_log_is_refused(first: int, last: int, peak: int) -> None:
    table = TABLES["memory_bucket"]
    assert decode(table, seq_first=64, seq_last=127, requested_peak_seq=100).num_rows == 1
    with pytest.raises(RankmemError, match="more than one range"):
        decode(table, seq_first=first, seq_last=last, requested_peak_seq=peak)


def test_a_modules_path_and_a_worlds_size_are_what_can_be_told_one_by_one() -> None:
    with pytest.raises(RankmemError, match="module has a text of 5000 bytes"):
        decode(TABLES["operator_call"], module="." * 5000)
    with pytest.raises(RankmemError, match="world_size holds"):
        decode(TABLES["session"], world_size=2**31 - 1)
    with pytest.raises(RankmemError, match="rank 1048576"):
        Spool(spool_id="s", session_id="s", attempt=0, rank=2**20)


@pytest.mark.parametrize("column", ["session_id", "attempt", "rank", "spool_id"])
def test_a_row_of_another_spool_is_refused_in_every_table(column: str) -> None:
    others = {"session_id": "0OTHERSESSIO", "attempt": 1, "rank": 4, "spool_id": "0TESTSESSION-0-3-78-55"}
    checked = [table for table in all_tables() if column in table.column_names()]
    assert checked
    for table in checked:
        own = SPOOL.columns()[column]
        with pytest.raises(RankmemError, match=rf"{table.name}\.{column} holds .* opened as"):
            decode(table, count=2, **{column: [own, others[column]]})


@pytest.mark.parametrize(
    "text", ["../x", "a/b", "", ".", "-x", "a b", "a\n", "\x1b[2J", "a\u202eb", "x" * 201]
)
def test_ids_are_fit_for_names_of_files(text: str) -> None:
    for ids in ({"spool_id": text, "session_id": "s"}, {"spool_id": "s", "session_id": text}):
        with pytest.raises(RankmemError) as refused:
            Spool(**ids, attempt=0, rank=0)
        assert refused.value.code is Code.INVALID
        assert refused.value.message.isprintable()


def test_more_tables_than_there_are_are_refused_unread() -> None:
    message = Batch(spool_id="x", tables=[TableRows()] * (len(TABLES) + 1))
    with pytest.raises(RankmemError, match="tables"):
        declared_bytes(message)


def test_a_stream_of_many_small_pieces_is_refused_by_their_number() -> None:
    table = TABLES["step"]
    piece = rows_of(table).to_batches()[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.arrow_schema()) as writer:
        for _ in range(BUFFERS_MAX // 12):
            writer.write_batch(piece)
    data = bytes(sink.getvalue())
    with pytest.raises(RankmemError, match=f"more than {BUFFERS_MAX} buffers"):
        declared_bytes(Batch(spool_id="x", tables=[TableRows(table="step", arrow_ipc=data)]))
