"""Status and top: what is stored now, how far behind, and what is left; each answer computed by hand."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, clear, store_logs, store_rows
from rankmem_aggregator.sql import query_text

NOW_NS = BASE_NS + 100 * SECOND_NS


@pytest.fixture
def database(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    clear(connection)
    connection.execute("DELETE FROM ingest_progress")
    return connection


def ask(connection: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    chosen = {"session": SESSION, "now_ns": NOW_NS}
    rows: list[dict[str, Any]] = connection.sql(query_text(name), params=chosen).to_arrow_table().to_pylist()
    return rows


def stored(
    connection: duckdb.DuckDBPyConnection, rank: int, *, ago_s: float, final: bool = False, spool: str = "a"
) -> None:
    connection.execute(
        "INSERT INTO ingest_progress VALUES (?, ?, 0, ?, 9, ?, ?, NULL)",
        [f"{rank}{spool}", SESSION, rank, final, NOW_NS - int(ago_s * SECOND_NS)],
    )


def test_each_rank_has_a_state_and_its_lag(database: duckdb.DuckDBPyConnection) -> None:
    logs = [RankLog(rank=rank, offset_ns=7 if rank == 0 else 0) for rank in range(5)]
    for log in logs:
        log.totals("cpu", [(98 * SECOND_NS, 50)])
    logs[2].ended = logs[3].ended = 99 * SECOND_NS
    store_logs(database, logs)
    cost = {"session_id": SESSION, "attempt": 0, "time_ns": BASE_NS, "spool_bytes": 4096}
    store_rows(database, "self_cost", [cost | {"rank": rank} for rank in (2, 3)])
    stored(database, 0, ago_s=1)
    stored(database, 1, ago_s=31)
    stored(database, 2, ago_s=2)
    stored(database, 3, ago_s=50, final=True)
    found = ask(database, "status")
    assert [row["state"] for row in found] == ["running", "silent", "ending", "ended", "running"]
    assert found[0]["lag_ns"] == SECOND_NS - 7, "the host's clock is 7 ns behind"
    assert found[1]["lag_ns"] == 0, "stored before its last event by the clocks: they differ, it is no lag"
    assert [row["spool_bytes"] for row in found] == [None, None, 4096, 0, None], (
        "what is stored is deleted there"
    )
    assert [row["silent_ns"] for row in found] == [SECOND_NS, 31 * SECOND_NS, 2 * SECOND_NS, None, None]


def test_an_imported_recording_has_no_lag(database: duckdb.DuckDBPyConnection) -> None:
    """It is stored whenever somebody imports it: years later, too."""
    log = RankLog(ended=99 * SECOND_NS)
    log.totals("cpu", [(98 * SECOND_NS, 50)])
    store_logs(database, [log])
    stored(database, 0, ago_s=1, final=True)
    assert ask(database, "status")[0]["lag_ns"] is not None
    database.execute("UPDATE session SET source = 'mindstudio'")
    assert ask(database, "status")[0]["lag_ns"] is None


def test_a_process_that_went_on_by_exec_is_one_rank(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.totals("cpu", [(10, 50)])
    store_logs(database, [log])
    stored(database, 0, ago_s=60, final=True, spool="a")
    stored(database, 0, ago_s=3, spool="b")
    (row,) = ask(database, "status")
    assert (row["state"], row["silent_ns"], row["final"]) == ("running", 3 * SECOND_NS, False)


def test_losses_are_those_of_the_rank(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.totals("cpu", [(10, 50)])
    store_logs(database, [log])
    hole = {"session_id": SESSION, "attempt": 0, "rank": 0, "sequence_first": 5, "sequence_last": 9,
            "records": 5, "why": "spool_full"}  # fmt: skip
    store_rows(database, "gap", [hole])
    database.execute("UPDATE rank_info SET events_lost = 5, complete = false")
    (row,) = ask(database, "status")
    assert (row["gaps"], row["events_lost"], row["complete"], row["events"]) == (1, 5, False, 1)


def test_what_a_rank_holds_is_its_last_total_and_headroom_counts_what_the_allocator_holds_unused(
    database: duckdb.DuckDBPyConnection,
) -> None:
    log = RankLog()
    log.totals("cuda:0", [(10, 500), (SECOND_NS, 900), (2 * SECOND_NS, 300)])
    store_logs(database, [log])
    device = {"session_id": SESSION, "attempt": 0, "rank": 0, "device": "cuda:0"}
    last_ns = BASE_NS + 2 * SECOND_NS
    bucket = device | {
        "bucket_ns": last_ns, "seq_first": 90, "seq_last": 90, "first_ns": last_ns, "last_ns": last_ns,
        "events": 1, "requested_peak_bytes": 300, "requested_peak_ns": last_ns, "requested_peak_seq": 90,
        "requested_last_bytes": 300, "allocated_last_bytes": 320, "active_last_bytes": 400,
        "reserved_last_bytes": 1000,
    }  # fmt: skip
    store_rows(database, "memory_bucket", [bucket])
    for seq, free in ((10, 7000), (20, 5000)):
        sample = device | {"seq": seq, "time_ns": BASE_NS + seq, "device_total_bytes": 8000}
        store_rows(database, "process_sample", [sample | {"device_free_bytes": free}])
    (row,) = ask(database, "top")
    assert (row["requested_bytes"], row["used_bytes"], row["peak_requested_bytes"]) == (300, 320, 900)
    assert row["headroom_bytes"] == 5000 + (1000 - 400)
    assert row["headroom_share"] == 5600 / 8000
    assert row["age_ns"] == 98 * SECOND_NS


def test_only_the_last_attempt_holds_anything_and_the_ended_hold_nothing(
    database: duckdb.DuckDBPyConnection,
) -> None:
    before, after, gone = RankLog(attempt=0), RankLog(attempt=1), RankLog(attempt=1, rank=1)
    gone.ended = 50
    for log, total in ((before, 900), (after, 100), (gone, 400)):
        log.totals("cpu", [(10, total)])
    store_logs(database, [before, after, gone])
    found = [(row["attempt"], row["rank"], row["used_bytes"], row["age_ns"]) for row in ask(database, "top")]
    assert found == [(1, 0, 100, NOW_NS - BASE_NS - 10), (1, 1, 0, None)]
    assert [row["headroom_bytes"] for row in ask(database, "top")] == [None, None]


def test_ranks_that_never_reported_are_listed_by_attempt(database: duckdb.DuckDBPyConnection) -> None:
    of_three: Any = {"world_size": 3}
    logs = [
        RankLog(rank=0, attempt=0, ended=5 * SECOND_NS, coordinates=of_three),
        RankLog(rank=2, attempt=0, coordinates=of_three),  # its host vanished
        RankLog(rank=0, attempt=1, started=10 * SECOND_NS, coordinates=of_three),
        RankLog(rank=1, attempt=1, started=10 * SECOND_NS, coordinates={"world_size": 10**9}),
    ]
    for log in logs:
        log.totals("cpu", [(log.started + SECOND_NS, 50)])
    store_logs(database, logs)
    found = [(row["attempt"], row["rank"], row["state"]) for row in ask_ranks(database) if row["rank"] < 4]
    assert found == [
        (0, 0, "exit"),
        (0, 1, "never reported"),
        (0, 2, "lost"),
        (1, 0, "running"),
        (1, 1, "running"),
        (1, 2, "awaited"),
        (1, 3, "awaited"),
    ]
    assert len(ask_ranks(database)) == 3 + 65536, "a world size is a number from outside: it is bounded"


def ask_ranks(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        connection.sql(query_text("ranks"), params={"session": SESSION}).to_arrow_table().to_pylist()
    )
    return rows
