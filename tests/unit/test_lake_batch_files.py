"""Received batches as files of a lake: ordered rows, the last of each key, each stack's frames once."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from rankmem_aggregator.ingest.batch import IncomingBatch, Spool, decode_batch
from rankmem_aggregator.lake.batch_files import _is_ordered, rows_by_session
from rankmem_aggregator.lake.layout import ALL_SESSIONS, TABLES, order_of
from rankmem_aggregator.store.schema import SPOOL_START
from sample_batches import SESSION_ID, RankSource

NO_STARTS = SPOOL_START.arrow_schema().empty_table()


def received(ranks: int, each: int) -> list[IncomingBatch]:
    """Batches of several ranks, the highest rank's first, in turn."""
    sources = [RankSource(rank=rank) for rank in reversed(range(ranks))]
    spools = {source.rank: Spool.of(source.open_spool().open_spool) for source in sources}
    return [decode_batch(source.batch(50), spools[source.rank]) for _ in range(each) for source in sources]


def test_rows_are_in_the_order_of_their_file_whatever_the_order_of_the_batches() -> None:
    rows = rows_by_session(received(3, 3), [], NO_STARTS)[SESSION_ID]
    assert rows["memory_event"].num_rows >= 3 * 3 * 50
    for name, table in rows.items():
        order = [(column, "ascending") for column in order_of(TABLES[name])]
        assert table.equals(table.sort_by(order)), name


def test_of_rows_with_one_key_the_last_that_came_is_left() -> None:
    batches = received(2, 3)
    (info,) = [
        table
        for name, table in rows_by_session(batches, [], NO_STARTS)[SESSION_ID].items()
        if name == "rank_info"
    ]
    newest = {batch.spool.rank: batch.rows["rank_info"]["events"][-1].as_py() for batch in batches}
    assert dict(zip(info["rank"].to_pylist(), info["events"].to_pylist(), strict=True)) == newest


def test_what_belongs_to_no_session_has_files_of_its_own() -> None:
    rows = rows_by_session(received(1, 1), [], NO_STARTS)
    assert set(rows[ALL_SESSIONS]) == {"stack_frame"}
    assert "stack_frame" not in rows[SESSION_ID]


@pytest.mark.parametrize("length", [0, 1, 4])
def test_an_order_is_seen_exactly_where_there_is_one(length: int) -> None:
    pairs = list(itertools.product(range(2), repeat=2))
    for rows in itertools.product(pairs, repeat=length):
        columns = [pa.chunked_array([pa.array([row[n] for row in rows], pa.int64())]) for n in range(2)]
        assert _is_ordered(columns) == (list(rows) == sorted(rows)), rows


def test_columns_that_are_no_plain_numbers_are_not_looked_at() -> None:
    assert not _is_ordered([pa.chunked_array([["a", "b"]])])
    assert not _is_ordered([pa.chunked_array([pa.array([1, None], pa.int64())])])
