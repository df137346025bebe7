"""Peaks, spans, overviews: each answer computed by hand."""

from __future__ import annotations

import datetime
from typing import Any

import duckdb
import pytest

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, clear, store_logs, store_rows


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    table = connection.sql(sql, params=parameters or None).to_arrow_table()
    return [tuple(row.values()) for row in table.to_pylist()]


def test_a_peak_is_the_first_of_equals_over_batches_and_seconds(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(offset_ns=7)
    log.totals("cpu", [(10, 50), (20, 90), (30, 10), (2 * SECOND_NS, 90), (2 * SECOND_NS + 1, 20)])
    store_logs(database, [log], cuts=[1, 2])
    answer = rows(
        database,
        "SELECT peak_requested_bytes, peak_time_ns, peak_seq, peak_time_utc, events FROM peak_by_rank",
    )
    at = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=BASE_NS // SECOND_NS)
    assert answer == [(90, BASE_NS + 27, 1, at, 5)]


def test_on_cpu_the_allocator_has_no_figures_of_its_own(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.totals("cpu", [(10, 50)])
    log.totals("cuda:0", [(11, 60)])
    store_logs(database, [log])
    answer = rows(
        database, "SELECT device, peak_allocated_bytes, peak_reserved_bytes FROM peak_by_rank ORDER BY device"
    )
    assert answer == [("cpu", 50, 50), ("cuda:0", None, None)]


def test_each_attempt_has_a_peak_and_one_is_the_ranks(database: duckdb.DuckDBPyConnection) -> None:
    attempts = [RankLog(attempt=number, started=number * 100) for number in range(3)]
    for log, height in zip(attempts, [80, 90, 90], strict=True):
        log.totals("cpu", [(log.started + 1, height)])
    store_logs(database, attempts)
    answer = rows(
        database, "SELECT attempt, peak_requested_bytes, is_rank_peak FROM peak_by_rank ORDER BY attempt"
    )
    assert answer == [(0, 80, False), (1, 90, False), (2, 90, True)]


def test_the_best_offset_measured_during_the_attempt_counts(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(offset_ns=1, ended=10 * SECOND_NS)
    store_logs(database, [log])
    assert rows(database, "SELECT offset_ns, error_ns FROM rank_span") == [(1, 1000)]
    estimates = [(5, 40, 300), (6, 41, 200), (7, 42, 200), (3600, 43, 1)]
    store_rows(
        database,
        "clock_offset",
        [
            {"host_uid": "host-0", "time_ns": BASE_NS + s * SECOND_NS, "offset_ns": offset, "error_ns": error}
            for s, offset, error in estimates
        ],
    )
    answer = rows(database, "SELECT offset_ns, error_ns, started_ns, ended_ns FROM rank_span")
    assert answer == [(41, 200, BASE_NS + 41, BASE_NS + 10 * SECOND_NS + 41)]


def test_hosts_show_their_highest_rank(database: duckdb.DuckDBPyConnection) -> None:
    logs = [RankLog(rank=rank, host_uid=f"host-{rank // 2}") for rank in range(4)]
    for log, height in zip(logs, [10, 30, 20, 20], strict=True):
        log.totals("cuda:0", [(5, height)])
    store_logs(database, logs)
    answer = rows(
        database,
        "SELECT host_name, num_ranks, highest_rank, peak_requested_bytes, lowest_peak_bytes, "
        "sum_of_peaks_bytes FROM peak_by_host ORDER BY host_name",
    )
    assert answer == [("name-of-host-0", 2, 1, 30, 10, 40), ("name-of-host-1", 2, 2, 20, 20, 40)]


def test_a_session_runs_until_its_last_rank_ended(database: duckdb.DuckDBPyConnection) -> None:
    logs = [RankLog(rank=0, ended=50), RankLog(rank=1, started=3)]
    for log in logs:
        log.totals("cpu", [(5, 10 + log.rank)])
    store_logs(database, logs)
    overview = (
        "SELECT state, started_ns - $base, duration_ns, num_ranks, events, highest_rank, complete "
        "FROM session_overview"
    )
    assert rows(database, overview, base=BASE_NS) == [("running", 0, None, 2, 2, 1, True)]
    clear(database)
    logs[1].ended, logs[1].complete = 70, False
    store_logs(database, logs)
    assert rows(database, overview, base=BASE_NS) == [("ended", 0, 70, 2, 2, 1, False)]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_of_ranks_that_stand_equally_high_the_lowest_is_the_highest_rank(
    database: duckdb.DuckDBPyConnection, order: tuple[int, ...]
) -> None:
    """In whatever order rows are stored; rank 0 has no events, so no peak that could be the highest."""
    logs = [RankLog(rank=rank) for rank in order]
    for log in logs:
        log.totals("cpu", [(5, 10 if log.rank == 3 else 20)])
    store_logs(database, [RankLog(rank=0), *logs])
    answer = rows(database, "SELECT highest_rank, peak_requested_bytes FROM session_overview")
    assert answer == [(1, 20)]


def test_a_rank_shows_its_holes(database: duckdb.DuckDBPyConnection) -> None:
    store_logs(database, [RankLog(complete=None)])
    place = {"session_id": SESSION, "attempt": 0, "rank": 0}
    hole = {"sequence_first": 5, "sequence_last": 9, "records": 5, "why": "spool_full"}
    store_rows(database, "gap", [place | hole])
    assert rows(database, "SELECT gaps, complete, devices, events FROM rank_overview") == [(1, False, [], 0)]


def test_a_curve_keeps_the_highest_of_each_second(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.totals("cpu", [(1, 5), (2, 50), (3, 20), (SECOND_NS, 25)])
    store_logs(database, [log], cuts=[2])
    answer = rows(
        database,
        "SELECT bucket_ns - $base, requested_peak_bytes, requested_last_bytes, events "
        "FROM memory_curve($id, 0)",
        base=BASE_NS,
        id=SESSION,
    )
    assert answer == [(0, 50, 20, 3), (SECOND_NS, 25, 25, 1)]
    assert rows(database, "SELECT * FROM memory_curve($id, 0, of_attempt := 1)", id=SESSION) == []


def test_events_are_shown_on_the_common_clock(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog(offset_ns=-3)
    log.totals("cpu", [(10, 5)])
    store_logs(database, [log])
    answer = rows(
        database, "SELECT time_ns - $base, host_uid, requested_bytes FROM memory_event_utc", base=BASE_NS
    )
    assert answer == [(7, "host-0", 5)]
