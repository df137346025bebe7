"""The job's peak against a merge of all events that anyone can follow."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, clear, empty_database, store_logs, store_rows
from job_peak_oracle import jobs, merged
from repetitions import examples, seeds

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with empty_database() as connection:
        yield connection


def ask(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        connection.sql("SELECT * FROM job_peak($session)", params={"session": SESSION})
        .to_arrow_table()
        .to_pylist()
    )
    return rows


def rows_of(connection: duckdb.DuckDBPyConnection, group: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        connection.sql("SELECT * FROM group_peak($session, $by)", params={"session": SESSION, "by": group})
        .to_arrow_table()
        .to_pylist()
    )
    return rows


def of_logs(connection: duckdb.DuckDBPyConnection, *logs: RankLog) -> list[dict[str, Any]]:
    clear(connection)
    store_logs(connection, logs)
    return ask(connection)


def as_merged(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int, dict[tuple[int, int, str], int]]]:
    answer: dict[str, tuple[int, int, dict[tuple[int, int, str], int]]] = {}
    for row in rows:
        first = (row["job_peak_bytes"], row["job_peak_ns"], {})
        shares = answer.setdefault(row["device_type"], first)[2]
        shares[row["attempt"], row["rank"], row["device"]] = row["requested_bytes"]
    return answer


def test_the_peak_of_the_job_is_no_sum_of_peaks(database: duckdb.DuckDBPyConnection) -> None:
    first, second = RankLog(rank=0), RankLog(rank=1)
    first.totals("cpu", [(10, 100), (20, 5)])
    second.totals("cpu", [(15, 30), (25, 90)])
    rows = of_logs(database, first, second)
    assert [(row["rank"], row["requested_bytes"], row["seq"]) for row in rows] == [(0, 100, 0), (1, 30, 0)]
    assert {(row["job_peak_bytes"], row["job_peak_ns"]) for row in rows} == {(130, BASE_NS + 15)}


def test_a_rank_that_ended_holds_nothing_any_more(database: duckdb.DuckDBPyConnection) -> None:
    first, second = RankLog(rank=0, ended=12), RankLog(rank=1)
    first.totals("cpu", [(10, 100)])
    second.totals("cpu", [(15, 99)])
    assert [(row["rank"], row["job_peak_bytes"]) for row in of_logs(database, first, second)] == [(0, 100)]
    first.ended = None
    assert {row["job_peak_bytes"] for row in of_logs(database, first, second)} == {199}


def test_an_attempt_whose_host_vanished_is_over_when_the_next_one_starts(
    database: duckdb.DuckDBPyConnection,
) -> None:
    before, after = RankLog(attempt=0), RankLog(attempt=1, started=50)
    before.totals("cpu", [(10, 100)])
    after.totals("cpu", [(60, 70)])
    assert [(row["attempt"], row["job_peak_bytes"]) for row in of_logs(database, before, after)] == [(0, 100)]


def test_hosts_are_put_on_one_clock(database: duckdb.DuckDBPyConnection) -> None:
    first = RankLog(rank=0, host_uid="host-0", offset_ns=0)
    second = RankLog(rank=1, host_uid="host-1", offset_ns=-1_000_000)
    first.totals("cpu", [(1000, 100), (2000, 0)])
    second.totals("cpu", [(1_001_500, 50), (1_001_800, 0)])
    rows = of_logs(database, first, second)
    assert {(row["job_peak_bytes"], row["job_peak_ns"]) for row in rows} == {(150, BASE_NS + 1500)}


def rows_between_operators(connection: duckdb.DuckDBPyConnection, profile: Path, num_buckets: int) -> int:
    logs = [RankLog(rank=0), RankLog(rank=1)]
    for log in logs:
        for number in range(num_buckets):
            log.skip(64)
            log.totals("cpu", [(number * 5_000_000 + log.rank, 100 + number % 7)])
    clear(connection)
    store_logs(connection, logs)
    connection.execute("PRAGMA enable_profiling = 'json'")
    connection.execute("SET profiling_output = $file", {"file": str(profile)})
    ask(connection)
    connection.execute("PRAGMA disable_profiling")
    count: int = json.loads(profile.read_text())["query"]["total_intermediate_rows"]
    return count


def test_twice_as_long_a_job_takes_twice_as_many_rows_to_search(tmp_path: Path) -> None:
    with empty_database() as connection:
        few = rows_between_operators(connection, tmp_path / "few.json", 200)
        many = rows_between_operators(connection, tmp_path / "many.json", 400)
    assert many < 3 * few  # windows paired with windows: four times as many


def test_each_device_type_has_its_own_peak(database: duckdb.DuckDBPyConnection) -> None:
    log = RankLog()
    log.totals("cpu", [(1, 10), (2, 0)])
    log.totals("cuda:0", [(3, 70), (4, 1)])
    log.totals("cuda:1", [(5, 60)])
    rows = of_logs(database, log)
    assert [
        (r["device_type"], r["device"], r["job_peak_bytes"], r["job_peak_ns"] - BASE_NS) for r in rows
    ] == [
        ("cpu", "cpu", 10, 1),
        ("cuda", "cuda:0", 70, 3),
    ]


def test_a_session_without_events_has_no_peak(database: duckdb.DuckDBPyConnection) -> None:
    assert of_logs(database, RankLog()) == []


def test_what_is_older_than_the_recording_counts_where_nothing_happened_since(
    database: duckdb.DuckDBPyConnection,
) -> None:
    whose = {"session_id": SESSION, "attempt": 0, "rank": 0, "device": "cpu"}
    stretch = {"seq_first": 1, "seq_last": 5, "first_ns": BASE_NS + 1, "last_ns": BASE_NS + 1, "events": 0}
    figures = {"peak_bytes": 700, "peak_ns": BASE_NS + 1, "peak_seq": 5, "last_bytes": 700}
    bucket = {f"requested_{name}": value for name, value in figures.items()}
    busy = RankLog(rank=1)
    busy.totals("cpu", [(15, 100), (20, 0)])
    for logs, shares in (([], {0: 700}), ([busy], {0: 700, 1: 100})):
        clear(database)
        store_logs(database, [RankLog(rank=0), *logs])
        store_rows(database, "memory_bucket", [{**whose, **stretch, **bucket, "bucket_ns": BASE_NS}])
        rows = ask(database)
        assert {row["rank"]: row["requested_bytes"] for row in rows} == shares
        assert {row["job_peak_bytes"] for row in rows} == {sum(shares.values())}


def test_a_second_may_straddle_two_seconds_of_the_common_clock(database: duckdb.DuckDBPyConnection) -> None:
    # The best bound is that of the window before the peak's own: found by hypothesis.
    log = RankLog(offset_ns=-1)
    log.totals("cuda:0", [(0, 0), (1, 1)])
    assert [(row["job_peak_bytes"], row["job_peak_ns"]) for row in of_logs(database, log)] == [(1, BASE_NS)]


def wild_rank(chance: random.Random, rank: int, offset_ns: int) -> RankLog:
    """Idle, low and near the top in turns, at intervals of milliseconds or of most of a second."""
    log = RankLog(rank=rank, host_uid=f"host-{offset_ns}", offset_ns=offset_ns)
    now = chance.randrange(SECOND_NS)
    longest_ns = chance.choice([2_000_000, 50_000_000, 900_000_000])
    num_events = chance.choice([40, 40, 150])
    gaps, devices = chance.choice([([1], ["cuda:0"]), ([1, 1, 0], ["cuda:0", "cuda:0", "cuda:1"])])
    for _ in range(num_events):
        now += chance.randrange(longest_ns) * chance.choice(gaps)
        log.skip(chance.choice([0, 0, 0, 30]))
        device = chance.choice(devices)
        height = chance.choice([0, 0, chance.randrange(1000), 1000 + chance.randrange(30)])
        log.totals(device, [(now, height)])
    log.ended = chance.choice([None, now])
    return log


@pytest.mark.parametrize("seed", seeds(60))
def test_pruning_loses_nothing(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    """The seeds were chosen so that each line of the pruning, when broken on purpose, fails one at least."""
    chance = random.Random(seed)
    offsets = [0, chance.randrange(SECOND_NS), -chance.randrange(3 * SECOND_NS)]
    logs = [wild_rank(chance, rank, offsets[rank % 3]) for rank in range(chance.choice([2, 3, 3, 4]))]
    clear(database)
    store_logs(database, logs, cuts=[chance.randrange(40) for _ in range(3)])
    assert as_merged(ask(database)) == merged(logs)


def steady_rank(chance: random.Random, rank: int, offset_ns: int) -> RankLog:
    """Steps of one height, reached a little apart by each rank: most pieces stay in question to the end."""
    log = RankLog(rank=rank, host_uid=f"host-{rank % 3}", offset_ns=offset_ns, coordinates={"tp": rank % 2})
    now = chance.randrange(1000)
    length = chance.choice([100, 130, 260])
    for step in range(chance.choice([2, 4])):
        for place in range(length):
            now += 1 + chance.randrange(chance.choice([2, 40]))
            height = 40 * min(place, length - place) + chance.randrange(60)
            log.totals("cuda:0", [(now, height)])
        now += chance.choice([0, 5_000])
        log.skip(chance.choice([0, 64]) * (step % 2))
    log.ended = chance.choice([None, now, now + 700])
    return log


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("group", ["job", "host", "tp"])
def test_groups_that_reach_one_height_in_every_step_have_their_exact_peaks(
    database: duckdb.DuckDBPyConnection, group: str, seed: int
) -> None:
    chance = random.Random(seed)
    offsets = [0, chance.randrange(300), -chance.randrange(3000)]
    logs = [steady_rank(chance, rank, offsets[rank % 3]) for rank in range(chance.choice([2, 5]))]
    clear(database)
    store_logs(database, logs, cuts=[chance.randrange(200) for _ in range(2)])
    groups: dict[str | None, list[RankLog]] = {}
    for log in logs:
        key = {"job": None, "host": log.host_uid, "tp": str(log.rank % 2)}[group]
        groups.setdefault(key, []).append(log)
    answer: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows_of(database, group):
        answer.setdefault(row["group_key"], []).append(
            row | {"job_peak_bytes": row["group_peak_bytes"], "job_peak_ns": row["group_peak_ns"]}
        )
    assert {key: as_merged(rows) for key, rows in answer.items()} == {
        key: merged(members) for key, members in groups.items()
    }


@examples(0.6)
@given(logs=jobs(), cuts=st.lists(st.integers(0, 20), max_size=4))
def test_the_peak_equals_a_merge_of_all_events(
    database: duckdb.DuckDBPyConnection, logs: list[RankLog], cuts: list[int]
) -> None:
    clear(database)
    store_logs(database, logs, cuts=cuts)
    # A job that never held a byte has no row; the merge says 0 bytes held by nobody.
    expected = {kind: peak for kind, peak in merged(logs).items() if peak[0] > 0}
    assert as_merged(ask(database)) == expected
