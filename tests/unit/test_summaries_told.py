"""Summaries while batches come: whatever comes late, what is told and what is left are what is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import RankLog, buckets_of, clear, empty_database, store_rows
from group_oracle import BY, logs
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.store.schema import INGEST_PROGRESS
from rankmem_aggregator.store.store import Store, open_store
from rankmem_aggregator.summaries import schedule as summaries
from rankmem_aggregator.summaries.schedule import Summaries
from rankmem_protos.tables import TABLES
from repetitions import examples
from summary_passes import of_groups

pytestmark = pytest.mark.slow

Rows = dict[str, list[dict[str, Any]]]
MANY = examples(0.15)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("summaries") / "s.duckdb"
    opened = open_store(AggregatorConfig(database_path=path, threads=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summaries, "LEAST_POSITIONS", 1)
        patch.setattr(summaries, "DUE_POSITIONS", 0)
        patch.setattr(summaries, "STEPS_BACK", 0)
        patch.setattr(summaries, "EVENTS_BACK", 2)
        patch.setattr(summaries, "RANK_POSITIONS", 3)
        yield opened
    opened.close()


@pytest.fixture(scope="module")
def beside() -> Iterator[duckdb.DuckDBPyConnection]:
    """The same rows without summaries."""
    with empty_database() as opened:
        yield opened


def batches_of(log: RankLog, ends: Sequence[int], delays: Sequence[int]) -> list[Rows]:
    """The rows of the log as batches that end after these positions; some rows come later than they could."""
    found: list[Rows] = [{} for _ in ends]

    def put(table: str, row: dict[str, Any], seq: int, delay: int = 0) -> None:
        first = next((n for n, end in enumerate(ends) if seq <= end), len(ends) - 1)
        found[min(first + delay, len(ends) - 1)].setdefault(table, []).append(row)

    for event in log.events:
        put("memory_event", event, event["seq"])
    blocks = enumerate(log.allocations.values())
    late = {block["allocation_id"]: delays[number % len(delays)] for number, block in blocks}
    for block in log.allocations.values():
        # A record with its free comes with the free at the earliest.
        seq = max(block["allocation_id"], block.get("freed_seq") or -1)
        put("allocation_record", block, seq, late[block["allocation_id"]])
    for end in log.endings:
        put("allocation_end", end, end["freed_seq"])
    for number, change in enumerate(log.changes):
        put("category_change", change, change["seq"], delays[number % len(delays)])
    for rows in found:
        rows["memory_bucket"] = buckets_of(rows.get("memory_event", []))
    found[0]["rank_info"] = [log.rank_row()]
    return found


def told(store: Store, log: RankLog, rows: Rows, batch: IncomingBatch, schedule: Summaries) -> None:
    """What the writer does with a batch."""
    progress = {"spool_id": batch.spool.spool_id, "last_sequence": batch.sequence_last, "final": batch.final}
    whose = {"session_id": log.session_id, "attempt": log.attempt, "rank": log.rank, "updated_ns": 0}
    more = {
        INGEST_PROGRESS.name: pa.Table.from_pylist([whose | progress], schema=INGEST_PROGRESS.arrow_schema())
    }
    store.write(tables_of(rows) | more | schedule.invalidate([batch]))
    schedule.commit()


def tables_of(rows: Rows) -> dict[str, pa.Table]:
    return {
        name: pa.Table.from_pylist(own, schema=TABLES[name].arrow_schema())
        for name, own in rows.items()
        if own
    }


@MANY
@given(
    log=logs(),
    by=BY,
    ends=st.lists(st.integers(0, 18), max_size=3),
    delays=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    restarts=st.booleans(),
    passes=st.integers(0, 4),
)
def test_summaries_and_what_came_since_are_together_what_is_stored(
    store: Store,
    beside: duckdb.DuckDBPyConnection,
    log: RankLog,
    by: str,
    ends: list[int],
    delays: list[int],
    restarts: bool,
    passes: int,
) -> None:
    if not log.events:
        return
    clear(beside)
    with store.transaction() as connection:
        clear(connection)
        connection.execute("DELETE FROM ingest_progress")
    ends = [*sorted(set(ends)), 100]
    spool = Spool(spool_id="s", session_id=log.session_id, attempt=log.attempt, rank=log.rank)
    schedule, before = Summaries(store), -1
    for number, (end, rows) in enumerate(zip(ends, batches_of(log, ends, delays), strict=True)):
        batch = IncomingBatch(
            spool=spool,
            batch_number=number,
            sequence_first=before + 1,
            sequence_last=end,
            final=end == ends[-1],
            rows=tables_of(rows),
            num_rows=1,
            tallest_rows=1,
            size_bytes=1,
        )
        told(store, log, rows, batch, schedule)
        for table, own in rows.items():
            store_rows(beside, table, own)
        before = end
        for _ in range(passes):
            schedule.advance()
        with store.cursor() as reader:
            assert of_groups(reader, by) == of_groups(beside, by)
        schedule = Summaries(store) if restarts else schedule
    while schedule.advance():
        pass
    with store.cursor() as reader:
        assert of_groups(reader, by) == of_groups(beside, by)
        row = reader.execute("SELECT seq, final FROM summary_progress").fetchone()
        assert row == (100, True)
        left = "SELECT count(*) FROM block_change($id, $by, only_recent := true)"
        assert reader.execute(left, {"id": log.session_id, "by": by}).fetchone() == (0,)


def test_a_row_from_before_invalidates_the_summaries_and_doubles_the_delay(store: Store) -> None:
    log = RankLog(session_id="0SESSION0002")
    log.alloc("block", 10, at=1, category="autograd_detail")
    log.alloc("other", 5, at=2)
    log.skip(8)
    spool = Spool(spool_id="late", session_id=log.session_id, attempt=0, rank=0)
    schedule = Summaries(store)

    def sent(first: int, last: int, rows: Rows) -> None:
        batch = IncomingBatch(
            spool=spool,
            batch_number=last,
            sequence_first=first,
            sequence_last=last,
            final=False,
            rows=tables_of(rows),
            num_rows=1,
            tallest_rows=1,
            size_bytes=1,
        )
        told(store, log, rows, batch, schedule)

    blocks = list(log.allocations.values())
    sent(0, 9, {"memory_event": log.events, "allocation_record": blocks, "rank_info": [log.rank_row()]})
    while schedule.advance():
        pass
    progress = f"SELECT seq FROM summary_progress WHERE session_id = '{log.session_id}'"
    with store.cursor() as reader:
        assert reader.execute(progress).fetchone() == (7,)  # what two positions have followed
    log.means("block", "gradient", at=20, since_alloc=True)
    sent(10, 12, {"category_change": log.changes})
    with store.cursor() as reader:
        assert reader.execute(progress).fetchone() == (summaries.NOTHING,)
        stale = f"SELECT count(*) FROM group_bucket WHERE session_id = '{log.session_id}'"
        assert reader.execute(stale).fetchone() != (0,)  # they stay until the next pass, and do not count
        whole = "SELECT group_name, bytes FROM group_course($id, 'category') WHERE bytes > 0 ORDER BY seq"
        assert reader.execute(whole, {"id": log.session_id}).fetchall()[:1] == [("gradient", 10)]
    assert schedule.num_invalidated == 1
