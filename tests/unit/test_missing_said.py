"""What a session lacks, found by the view and said in lines; nothing where nothing is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, store_logs, store_rows
from rankmem_aggregator.query.missing import LINES_MAX, lines
from rankmem_aggregator.query.open import open_queries
from rankmem_aggregator.sql import install_views, query_text
from rankmem_aggregator.store import schema
from rankmem_cli.show.completeness import with_incomplete
from rankmem_cli.show.render import Format
from rankmem_protos.credentials import Credentials

pytestmark = pytest.mark.slow


def missing(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    found = connection.sql(query_text("incompleteness"), params={"session": SESSION})
    rows: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
    return rows


def stored(connection: duckdb.DuckDBPyConnection, num_ranks: int, **facts: object) -> None:
    logs = [RankLog(rank=rank, ended=SECOND_NS, offset_ns=SECOND_NS) for rank in range(num_ranks)]
    for log in logs:
        log.totals("cpu", [(10, 50)])
    store_logs(connection, logs)
    for column, value in facts.items():
        connection.execute(f"UPDATE rank_info SET {column} = ?", [value])


def gap(rank: int, why: str, **more: object) -> dict[str, object]:
    place = {"session_id": SESSION, "attempt": 0, "rank": rank, "sequence_first": 5, "sequence_last": 5}
    return place | {"records": 0, "why": why, "noticed_ns": BASE_NS} | more


def test_a_complete_session_has_no_rows(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, 2, world_size=2)
    assert missing(database) == []
    assert lines([]) == []


def test_an_agent_that_is_off_is_a_gap_from_then_on(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, 1)
    off = {"to_end": True, "detail": "TypeError: odd"}
    store_rows(database, "gap", [gap(0, "agent_off", **off), gap(0, "hooks_off", what="modules", **off)])
    database.execute("UPDATE rank_info SET complete = false, events_lost = NULL")
    all_of_it, names = missing(database)
    assert lines([all_of_it]) == [
        "rank 0: the agent switched itself off at 22:13:21 UTC (TypeError: odd): nothing after that was "
        "recorded; the true peak may be higher than shown"
    ]
    assert all_of_it["since_ns"] == BASE_NS + SECOND_NS, "on the common clock"
    assert (all_of_it["is_bytes"], names["is_bytes"]) == (True, False)
    assert lines([names])[0].endswith(
        "modules were not recorded after 22:13:21 UTC (TypeError: odd); byte figures are exact"
    )
    assert database.sql("SELECT events_lost, gaps, complete FROM rank_overview").fetchall() == [
        (None, 1, False)
    ]
    assert database.sql("SELECT events_lost, complete FROM session_overview").fetchall() == [(None, False)]
    assert database.sql("SELECT events_lost, complete FROM rank_status").fetchall() == [(None, False)]


def test_names_alone_leave_a_rank_complete(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, 1)
    store_rows(database, "gap", [gap(0, "hooks_off", what="steps", to_end=True)])
    assert database.sql("SELECT events_lost, gaps, complete FROM rank_overview").fetchall() == [(0, 0, True)]
    assert [row["what"] for row in missing(database)] == ["steps"]


def test_ranks_that_never_reported_are_missing_of_the_session(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, 2, world_size=6)
    assert lines(missing(database)) == [
        "ranks 2 to 5: never reported: the launcher announced it, but nothing from it is stored"
    ]
    assert database.sql("SELECT complete FROM session_overview").fetchall() == [(False,)]


def test_holes_losses_and_dropped_names_are_listed(database: duckdb.DuckDBPyConnection) -> None:
    stored(database, 3)
    store_rows(
        database, "gap", [gap(0, "spool_full", records=1200), gap(0, "spool_full", records=34), gap(1, "x")]
    )
    database.execute("UPDATE rank_info SET unexplained_bytes = 4096, complete = false WHERE rank = 1")
    cost = {"session_id": SESSION, "attempt": 0, "rank": 2, "time_ns": BASE_NS, "strings_dropped": 7}
    store_rows(database, "self_cost", [cost])
    assert lines(missing(database)) == [
        "rank 0: 1,234 records (at most as many events) are missing: its spool was full "
        "(RANKMEM_SPOOL_BYTES)",
        "rank 1: 4,096 bytes are unexplained: the recorded events differ from the allocator's own figure by "
        "that much",
        "rank 1: 0 records are missing (x)",
        "rank 2: 7 names or stacks did not fit into the spool and are unknown; byte figures are exact",
    ]


def test_a_rank_that_recorded_no_device_is_not_complete_in_silence(
    database: duckdb.DuckDBPyConnection,
) -> None:
    store_logs(database, [RankLog(ended=SECOND_NS)])
    assert lines(missing(database)) == ["rank 0: none of its devices were recorded"]


def test_hundreds_of_ranks_that_lack_something_fit_on_a_screen() -> None:
    rows = [{"attempt": 0, "rank": rank, "sentence": f"lost {rank}"} for rank in range(300)]
    assert len(lines(rows)) == LINES_MAX + 1
    same = [row | {"sentence": "off", "attempt": 1} for row in rows if row["rank"] not in (3, 9)]
    assert lines(same) == ["ranks 0 to 2, 4 to 8, 10 to 299 (attempt 1): off"]
    scattered = [row | {"sentence": "off"} for row in rows if row["rank"] % 2]
    assert lines(scattered) == ["ranks 1, 3, 5, 7, 9, 11, 13, 15 …: off"]


def test_ranks_of_several_attempts_are_named_with_their_own() -> None:
    rows = [
        {"attempt": attempt, "rank": rank, "sentence": "off"} for attempt, rank in ((0, 1), (1, 3), (1, 4))
    ]
    assert lines(rows) == ["rank 1 (attempt 0), ranks 3, 4 (attempt 1): off"]


def test_a_rank_whose_end_is_not_known_is_not_complete(database: duckdb.DuckDBPyConnection) -> None:
    lost, next_attempt = RankLog(), RankLog(attempt=1, started=5 * SECOND_NS, ended=9 * SECOND_NS)
    for log in (lost, next_attempt):
        log.totals("cpu", [(log.started + 10, 50)])
    store_logs(database, [lost, next_attempt])
    database.execute("UPDATE rank_info SET complete = true")
    told = "SELECT attempt, complete FROM {} ORDER BY attempt"
    assert [row["why"] for row in missing(database)] == ["lost"]
    for view in ("rank_overview", "rank_status"):
        assert database.sql(told.format(view)).fetchall() == [(0, False), (1, True)], view


def test_a_program_finds_it_in_the_rows_that_it_concerns() -> None:
    rows = pa.table({"rank": [0, 1], "peak": [5, 6]})
    lacks = [{"attempt": 0, "rank": 1, "sentence": "off"}]
    assert with_incomplete(rows, [], Format.JSON).column_names == ["rank", "peak"]
    assert with_incomplete(rows, lacks, Format.TABLE).column_names == ["rank", "peak"]
    assert with_incomplete(rows, lacks, Format.JSON)["incomplete"].to_pylist() == [None, "off"]
    job = pa.table({"peak": [5]})
    assert with_incomplete(job, lacks, Format.CSV)["incomplete"].to_pylist() == ["rank 1: off"]


@pytest.mark.parametrize("time_zone", ["UTC", "Asia/Kolkata"])
def test_the_reader_s_time_zone_changes_no_sentence(
    database: duckdb.DuckDBPyConnection, time_zone: str
) -> None:
    stored(database, 1)
    store_rows(database, "gap", [gap(0, "agent_off", to_end=True)])
    database.execute(f"SET TimeZone = '{time_zone}'")
    try:
        assert "at 22:13:21 UTC" in missing(database)[0]["sentence"]
    finally:
        database.execute("RESET TimeZone")


def test_a_database_of_an_older_version_lists_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "older.duckdb"
    with duckdb.connect(str(path)) as made:
        schema.prepare(made)
        install_views(made)
        stored(made, 2, world_size=3)
        made.execute("UPDATE rank_info SET unexplained_bytes = 4096, complete = false WHERE rank = 0")
        made.execute("UPDATE rank_info SET events_lost = 5, complete = false WHERE rank = 1")
        made.execute("DROP VIEW incompleteness")
        older = "SELECT '0SESSION0001' AS session_id, 0 AS attempt, 2 AS rank, 'never came' AS state"
        made.execute(f"CREATE OR REPLACE VIEW rank_missing AS {older}")
    with open_queries(path, Credentials(), unsafe=True) as queries:  # with the views of that version
        assert lines(queries.incompleteness().to_pylist()) == [
            "rank 0: 4,096 bytes are unexplained: the recorded events differ from the allocator's own figure "
            "by that much",
            "rank 1: 5 events are missing; the table gap says why",
            "rank 2: never reported: nothing from it is stored",
        ]
        assert queries.incompleteness().column_names == [
            "session_id", "attempt", "rank", "why", "what", "detail", "since_ns", "since_utc", "records",
            "is_bytes", "sentence",
        ]  # fmt: skip


def test_a_database_of_an_older_version_tells_the_facts_of_a_session_as_it_can(tmp_path: Path) -> None:
    path = tmp_path / "older.duckdb"
    with duckdb.connect(str(path)) as made:
        schema.prepare(made)
        install_views(made)
        stored(made, 2)
    with open_queries(path, Credentials(), unsafe=True) as queries:
        today = queries.session_facts()
    with duckdb.connect(str(path)) as made:
        made.execute("DROP VIEW session_facts")
        made.execute("CREATE OR REPLACE VIEW session_overview AS SELECT *, 'then' AS state FROM session")
    with open_queries(path, Credentials(), unsafe=True) as queries:  # with the views of that version
        then = queries.session_facts()
    assert today["state"] == "ended"
    assert then["state"] == "then"
    assert then["session_id"] == today["session_id"] == SESSION
