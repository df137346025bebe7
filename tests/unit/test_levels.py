"""Cells of memory_level: with the rows of memory_bucket that are not in them, exactly what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import clear, empty_database, store_rows
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.retention.delete import Pruner
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.copy import export_duckdb
from rankmem_aggregator.store.schema import INGEST_PROGRESS
from rankmem_aggregator.store.store import Store, open_store
from rankmem_aggregator.summaries import levels
from rankmem_aggregator.summaries.one_pass import NOTHING
from rankmem_aggregator.summaries.schedule import Summaries
from rankmem_protos.summary_tables import LEVEL_WIDTHS_S
from rankmem_protos.tables import TABLES
from repetitions import examples

pytestmark = pytest.mark.slow

SESSION: Final = "0LEVELS00001"
SECOND_NS: Final = 1_000_000_000
BASE_NS: Final = 1_700_000_000 * SECOND_NS
OWNER: Final = ("session_id", "attempt", "rank")
FIGURES: Final = ("allocated", "active", "reserved")
Row = dict[str, Any]

FORMER_PEAKS: Final = """
SELECT attempt, rank, device, max(requested_peak_bytes),
       arg_max(requested_peak_ns, (requested_peak_bytes, -requested_peak_seq)),
       arg_max(requested_peak_seq, (requested_peak_bytes, -requested_peak_seq)),
       max(allocated_peak_bytes), max(active_peak_bytes), max(reserved_peak_bytes), sum(events)::BIGINT
FROM memory_bucket GROUP BY ALL ORDER BY ALL
"""
"""peak_by_rank's own aggregation, as it read memory_bucket before there were cells."""
PEAKS: Final = """
SELECT attempt, rank, device, peak_requested_bytes, peak_time_ns, peak_seq, peak_allocated_bytes,
       peak_active_bytes, peak_reserved_bytes, events
FROM peak_by_rank ORDER BY ALL
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("levels") / "s.duckdb"
    opened = open_store(AggregatorConfig(database_path=path, threads=1))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def empty(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tellings, so that a short log has several; a store without rows."""
    monkeypatch.setattr(levels, "LEAST_POSITIONS", 1)
    monkeypatch.setattr(levels, "RANK_POSITIONS", 256)
    monkeypatch.setattr(levels, "FOLD_POSITIONS", 400)
    monkeypatch.setattr("rankmem_aggregator.summaries.schedule.DUE_POSITIONS", 0)
    _empty(store)


def _empty(store: Store) -> None:
    with store.transaction() as connection:
        clear(connection)
        for name in ("ingest_progress", "pruned_spool"):
            connection.execute(f"DELETE FROM {name}")


def bucket(part: int, place: int, *, rank: int = 0, device: str = "cuda:0", **columns: Any) -> Row:
    """A row of memory_bucket: events ``place`` to ``place + 1`` of a part of 64 positions."""
    seq = 64 * part + place
    time_ns = BASE_NS + columns.pop("at_ns", part * SECOND_NS // 4)
    peak = columns.get("requested_peak_bytes", 100)
    return {
        "session_id": SESSION,
        "attempt": 0,
        "rank": rank,
        "device": device,
        "bucket_ns": time_ns // SECOND_NS * SECOND_NS,
        "seq_first": seq,
        "seq_last": seq + 1,
        "first_ns": time_ns,
        "last_ns": time_ns + 5,
        "events": 2,
        "requested_peak_bytes": peak,
        "requested_peak_ns": time_ns + 3,
        "requested_peak_seq": seq + peak % 2,
        "requested_last_bytes": peak - peak // 3,
        **columns,
    }


@st.composite
def rank_buckets(draw: st.DrawFn, rank: int) -> list[Row]:
    """What a rank did, in order of the log: dense, with pauses, on two devices; its clock may be set back."""
    found: list[Row] = []
    part, at_ns = -1, draw(st.integers(0, 2000)) * SECOND_NS
    peaks = st.integers(1, 6)
    for _ in range(draw(st.integers(0, 40))):
        part += draw(st.sampled_from([1, 1, 1, 1, 2, 9]))
        at_ns += draw(
            st.sampled_from([0, 1, 1, 1, SECOND_NS // 10, SECOND_NS // 3, SECOND_NS, 500 * SECOND_NS])
        )
        if draw(st.integers(0, 19)) == 0:
            at_ns -= 7 * SECOND_NS
        devices = draw(st.sampled_from([["cuda:0"], ["cuda:0"], ["cuda:0", "cpu"]]))
        for place, device in enumerate(devices):
            known = draw(st.booleans())
            figures = {
                f"{name}_{which}_bytes": draw(peaks) if known else None
                for name in FIGURES
                for which in ("peak", "last")
            }
            found.append(
                bucket(
                    part,
                    2 * place,
                    rank=rank,
                    device=device,
                    at_ns=at_ns,
                    requested_peak_bytes=draw(peaks),
                    **figures,
                )
            )
    return found


def batches_of(rank: int, rows: list[Row], num_batches: int, late: list[bool]) -> list[tuple[list[Row], int]]:
    """The rows in batches, each with the position that it ends at; some come a batch too late."""
    cut = max(1, -(-len(rows) // num_batches))
    groups = [rows[begin : begin + cut] for begin in range(0, len(rows), cut)] or [[]]
    ends = [group[-1]["seq_last"] if group else 0 for group in groups]
    for number in range(len(groups) - 1):
        if late[number % len(late)] and groups[number]:
            groups[number + 1].insert(0, groups[number].pop())
    return list(zip(groups, ends, strict=True))


def sent(
    store: Store, schedule: Summaries, rank: int, rows: list[Row], first: int, last: int, **log: Any
) -> None:
    """What the writer does with a batch."""
    spool = Spool(spool_id=f"{rank}-{log.get('log', 0)}", session_id=SESSION, attempt=0, rank=rank)
    tables = {"memory_bucket": table_of("memory_bucket", rows)} if rows else {}
    batch = IncomingBatch(
        spool=spool,
        batch_number=0,
        sequence_first=first,
        sequence_last=last,
        final=log.get("final", False),
        rows=tables,
        num_rows=1,
        tallest_rows=1,
        size_bytes=1,
    )
    progress = {"session_id": SESSION, "attempt": 0, "rank": rank, "spool_id": spool.spool_id}
    progress |= {"last_sequence": last, "final": batch.final, "updated_ns": 0}
    own = pa.Table.from_pylist([progress], schema=INGEST_PROGRESS.arrow_schema())
    store.write(tables | {INGEST_PROGRESS.name: own} | schedule.invalidate([batch]))
    schedule.commit()


def table_of(name: str, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=TABLES[name].arrow_schema())


def cells(rows: list[Row], width_s: int) -> dict[Any, Any]:
    """What rows of memory_cell or memory_bucket add up to, in cells of a width, by plain loops."""
    found: dict[Any, Any] = {}
    for row in rows:
        key = (row["rank"], row["device"], row["cell_ns"] // (width_s * SECOND_NS))
        found.setdefault(key, []).append(row)
    return {key: _added_up(own) for key, own in found.items()}


def _added_up(rows: list[Row]) -> dict[str, Any]:
    top = max(rows, key=lambda row: (row["peak_bytes"], -row["peak_seq"]))
    figures = {}
    for name in FIGURES:
        known = [row[f"{name}_peak_bytes"] for row in rows if row[f"{name}_peak_bytes"] is not None]
        figures[name] = max(known, default=None)
        left = [row for row in rows if row[f"{name}_last_bytes"] is not None]
        left.sort(key=lambda row: row["seq_last"])
        figures[f"{name} left"] = left[-1][f"{name}_last_bytes"] if left else None
    return figures | {
        "seq": (min(row["seq_first"] for row in rows), max(row["seq_last"] for row in rows)),
        "time_ns": (min(row["first_ns"] for row in rows), max(row["last_ns"] for row in rows)),
        "events": sum(row["events"] for row in rows),
        "peak": (top["peak_bytes"], top["peak_ns"], top["peak_seq"]),
        "low": min(row["low_bytes"] for row in rows),
        "last": max(rows, key=lambda row: row["seq_last"])["last_bytes"],
    }


def stored(reader: duckdb.DuckDBPyConnection) -> list[Row]:
    """memory_bucket, under the names of cells."""
    return rows_of(
        reader,
        "SELECT *, bucket_ns AS cell_ns, requested_peak_bytes AS peak_bytes, requested_peak_ns AS peak_ns, "
        "requested_peak_seq AS peak_seq, requested_last_bytes AS low_bytes, "
        "requested_last_bytes AS last_bytes FROM memory_bucket",
    )


def rows_of(reader: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    found: list[Row] = reader.sql(sql).to_arrow_table().to_pylist()
    return found


def check(store: Store) -> None:
    """The property, at every width, for one session and for all; and the bound of the rows."""
    with store.cursor() as reader:
        expected = stored(reader)
        for asked, width_s in [(0, 1), *((width, width) for width in LEVEL_WIDTHS_S), (100, 64)]:
            found = rows_of(reader, f"FROM memory_cell('{SESSION}', {asked})")
            assert all(row["width_s"] <= width_s for row in found)
            assert cells(found, width_s) == cells(expected, width_s)
        everything = rows_of(reader, "FROM memory_cell(NULL, 1024)")
        assert cells(everything, 1024) == cells(expected, 1024)
        few = rows_of(
            reader,
            "SELECT (SELECT count(*) FROM memory_level AS l WHERE l.rank = b.rank) AS cells, "
            "count(*) AS rows FROM memory_bucket AS b GROUP BY b.rank",
        )
        assert all(3 * row["cells"] <= row["rows"] for row in few)
        assert reader.sql(PEAKS).fetchall() == [
            tuple(
                peak if value is None and place in (6, 7, 8) and row[2] == "cpu" else value
                for place, value in enumerate(row)
            )
            for row in reader.sql(FORMER_PEAKS).fetchall()
            for peak in (row[3],)
        ]


@pytest.mark.slow
@examples(0.2)
@given(
    logs=st.tuples(rank_buckets(0), rank_buckets(1)),
    num_batches=st.integers(1, 6),
    late=st.lists(st.sampled_from([False, False, True]), min_size=1, max_size=3),
    restarts=st.booleans(),
    tellings=st.integers(0, 3),
    again=st.booleans(),
)
def test_cells_and_what_is_not_in_them_are_together_what_is_stored(
    store: Store,
    logs: tuple[list[Row], ...],
    num_batches: int,
    late: list[bool],
    restarts: bool,
    tellings: int,
    again: bool,
) -> None:
    _empty(store)
    schedule = Summaries(store)
    waiting = {rank: batches_of(rank, rows, num_batches, late) for rank, rows in enumerate(logs)}
    before = dict.fromkeys(waiting, -1)
    while any(waiting.values()):
        for rank, batches in waiting.items():
            if batches:
                rows, last = batches.pop(0)
                sent(store, schedule, rank, rows, before[rank] + 1, last, final=not batches)
                before[rank] = last
        for _ in range(tellings):
            schedule.advance()
        schedule = Summaries(store) if restarts else schedule
        check(store)
    while schedule.advance():
        pass
    check(store)
    if again:  # the process went on by exec: its second log has positions of its own
        sent(store, schedule, 0, [bucket(70, 0), bucket(0, 40)], 0, 70 * 64 + 1, log=1)
        check(store)
        while schedule.advance():
            pass
        check(store)


@pytest.mark.slow
@examples(0.2)
@given(
    logs=st.tuples(rank_buckets(0), rank_buckets(1)),
    is_told=st.sampled_from([True, True, False]),
    instants=st.lists(st.tuples(st.integers(0, 79), st.integers(-9, 9)), min_size=1, max_size=5),
)
def test_the_last_row_of_each_device_by_an_instant_is_found_by_its_cell(
    store: Store, logs: tuple[list[Row], ...], is_told: bool, instants: list[tuple[int, int]]
) -> None:
    """Without events, so of devices amid a row nothing is known."""
    _empty(store)
    schedule = Summaries(store)
    known = {"session_id": SESSION, "attempt": 0, "host_uid": "h", "started_at_ns": BASE_NS}
    lives = [known | {"rank": rank, "spool_id": str(rank), "complete": True} for rank in range(2)]
    store.write({"rank_info": table_of("rank_info", lives)})
    for rank, rows in enumerate(logs):
        sent(store, schedule, rank, rows, 0, rows[-1]["seq_last"] if rows else 0, final=rank == 0)
    for _ in range(8 * is_told):
        schedule.advance()
    both = [*logs[0], *logs[1]]
    with store.cursor() as reader:
        for place, past_ns in instants if both else []:
            at_ns = both[place % len(both)]["first_ns"] + past_ns
            begun = [row for row in both if row["first_ns"] <= at_ns]
            last = {(row["rank"], row["device"]): row for row in sorted(begun, key=lambda r: r["seq_first"])}
            expected = [
                (*key, row["requested_last_bytes"], row["seq_last"], row["last_ns"])
                for key, row in sorted(last.items())
                if row["last_ns"] <= at_ns
            ]
            found = reader.execute(
                "SELECT rank, device, requested_bytes, seq, time_ns FROM held_at($session, $at) ORDER BY ALL",
                {"session": SESSION, "at": at_ns},
            ).fetchall()
            assert found == expected


def dense(parts: range, rank: int = 0) -> list[Row]:
    return [bucket(part, 0, rank=rank, at_ns=part * SECOND_NS // 20) for part in parts]


def test_a_dense_log_is_told_whole_and_then_memory_bucket_is_not_read(store: Store) -> None:
    schedule = Summaries(store)
    sent(store, schedule, 0, dense(range(400)), 0, 400 * 64 - 2, final=True)
    while schedule.advance():
        pass
    check(store)
    with store.cursor() as reader:
        assert reader.sql("SELECT seq, final FROM level_progress").fetchall() == [(400 * 64 - 1, True)]
        assert reader.sql("SELECT DISTINCT width_s FROM memory_cell(NULL, 1024)").fetchall() == [(1024,)]
        assert reader.sql(f"SELECT sum(events) FROM memory_cell('{SESSION}', 16)").fetchall() == [(800,)]
    assert schedule.levels.num_invalidated == 0


def test_a_running_log_is_told_up_to_its_last_whole_part_whatever_its_categories_wait_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "RANK_POSITIONS", 1 << 16)
    schedule = Summaries(store)
    sent(store, schedule, 0, dense(range(100)), 0, 99 * 64 + 7)
    while schedule.advance():
        pass
    check(store)
    with store.cursor() as reader:
        assert reader.sql("SELECT seq, final FROM level_progress").fetchall() == [(99 * 64 - 1, False)]
        assert reader.sql("SELECT count(*) FROM summary_progress").fetchall() == [(0,)]
        # The rest of the part: one row of memory_bucket.
        assert reader.sql("SELECT seq_first FROM memory_cell(NULL, 1024) WHERE width_s = 1").fetchall() == [
            (99 * 64,)
        ]


def test_rare_rows_stay_as_they_are_and_are_told_once_many_have_followed(store: Store) -> None:
    schedule = Summaries(store)
    rare = [bucket(part, 0, at_ns=part * 3 * SECOND_NS) for part in range(8)]
    sent(store, schedule, 0, rare, 0, 8 * 64 - 1)
    while schedule.advance():
        pass
    with store.cursor() as reader:
        assert reader.sql("SELECT count(*) FROM level_progress").fetchall() == [(0,)]
    check(store)
    more = [bucket(part, 0, at_ns=24 * SECOND_NS + part * SECOND_NS // 50) for part in range(8, 80)]
    sent(store, schedule, 0, more, 8 * 64, 80 * 64 - 1, final=True)
    while schedule.advance():
        pass
    with store.cursor() as reader:
        assert reader.sql("SELECT seq, final FROM level_progress").fetchall() == [(80 * 64 - 1, True)]
    check(store)


def test_a_row_from_before_takes_the_ranks_cells_back_and_they_are_told_again(store: Store) -> None:
    schedule = Summaries(store)
    sent(store, schedule, 0, dense(range(64)), 0, 64 * 64 - 1)
    sent(store, schedule, 1, dense(range(64), rank=1), 0, 64 * 64 - 1)
    while schedule.advance():
        pass
    late = bucket(3, 20, requested_peak_bytes=5000)
    sent(store, schedule, 0, [late], 64 * 64, 65 * 64 - 1)
    assert schedule.levels.num_invalidated == 1
    with store.cursor() as reader:
        progress = "SELECT rank, seq FROM level_progress ORDER BY rank"
        assert reader.sql(progress).fetchall() == [(0, NOTHING), (1, 64 * 64 - 1)]
        top = "SELECT peak_requested_bytes, peak_seq FROM peak_by_rank WHERE rank = 0"
        assert reader.sql(top).fetchall() == [(5000, 3 * 64 + 20)]
    check(store)
    while schedule.advance():
        pass
    with store.cursor() as reader:
        assert reader.sql(progress).fetchall() == [(0, 65 * 64 - 1), (1, 64 * 64 - 1)]
        assert reader.sql(
            "SELECT sum(events) FROM memory_level WHERE rank = 0 AND width_s = 4"
        ).fetchall() == [(2 * 65,)]
    check(store)


def test_a_second_log_after_the_first_ones_end_is_not_overlooked(store: Store) -> None:
    schedule = Summaries(store)
    sent(store, schedule, 0, dense(range(64)), 0, 64 * 64 - 1, final=True)
    while schedule.advance():
        pass
    sent(store, schedule, 0, [bucket(70, 0, requested_peak_bytes=5000)], 0, 70 * 64 + 1, log=1)
    check(store)
    with store.cursor() as reader:
        assert reader.sql("SELECT peak_requested_bytes FROM peak_by_rank").fetchall() == [(5000,)]
    assert not schedule.advance()
    check(store)


def test_what_was_told_by_another_process_is_not_told_twice(store: Store) -> None:
    schedule = Summaries(store)
    sent(store, schedule, 0, dense(range(64)), 0, 64 * 64 - 1)
    while schedule.advance():
        pass
    schedule = Summaries(store)
    assert not schedule.advance()
    sent(store, schedule, 0, dense(range(64, 128)), 64 * 64, 128 * 64 - 1, final=True)
    while schedule.advance():
        pass
    with store.cursor() as reader:
        assert reader.sql("SELECT sum(events) FROM memory_level WHERE width_s = 64").fetchall() == [(256,)]
    check(store)


def test_a_deleted_session_leaves_no_cells(store: Store) -> None:
    schedule = Summaries(store)
    sent(store, schedule, 0, dense(range(64)), 0, 64 * 64 - 1, final=True)
    while schedule.advance():
        pass
    pruner = Pruner(store)
    pruner.tombstone(SESSION)
    while pruner.is_busy:
        pruner.step()
    schedule.forget(SESSION)
    with store.cursor() as reader:
        for name in ("memory_level", "level_progress"):
            assert reader.sql(f"SELECT count(*) FROM {name}").fetchall() == [(0,)]


def test_a_copy_has_the_cells(store: Store, tmp_path: Path) -> None:
    schedule = Summaries(store)
    sent(store, schedule, 0, dense(range(64)), 0, 64 * 64 - 1, final=True)
    while schedule.advance():
        pass
    with store.cursor() as reader:
        export_duckdb(reader, tmp_path / "copy.duckdb")
        everything = "SELECT * FROM memory_level ORDER BY ALL"
        with duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True) as copy:
            assert copy.sql(everything).fetchall() == reader.sql(everything).fetchall() != []
            assert copy.sql("FROM level_progress").fetchall() == reader.sql("FROM level_progress").fetchall()


def test_a_database_without_cells_is_read_from_memory_bucket() -> None:
    with empty_database() as connection:
        store_rows(connection, "memory_bucket", dense(range(20)))  # not even a row of rank_info
        found = rows_of(connection, "FROM memory_cell(NULL, 1024)")
        assert cells(found, 4) == cells(stored(connection), 4)
        assert {row["width_s"] for row in found} == {1}


def test_a_database_from_before_gets_its_cells_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "older.duckdb"
    config = AggregatorConfig(database_path=path, threads=1)
    older = open_store(config)
    sent(older, Summaries(older), 0, dense(range(64)), 0, 64 * 64 - 1, final=True)
    with older.transaction() as connection:
        for name in ("memory_level", "level_progress"):
            connection.execute(f"DROP TABLE {name}")
        connection.execute(f"UPDATE {schema.META.name} SET schema_version = 11")
    older.close()
    with duckdb.connect(str(path), read_only=True) as connection:
        before = rows_of(connection, "FROM memory_bucket ORDER BY ALL")
    opened = open_store(config)
    schedule = Summaries(opened)
    check(opened)
    while schedule.advance():
        pass
    check(opened)
    with opened.cursor() as reader:
        assert rows_of(reader, "FROM memory_bucket ORDER BY ALL") == before
        assert reader.sql("SELECT final FROM level_progress").fetchall() == [(True,)]
    opened.close()
