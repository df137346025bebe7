"""What a client may not run, and what it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_aggregator.client_queries import ClientQueries
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store import Store, open_store
from rankmem_protos.errors import Code, RankmemError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    config = AggregatorConfig(database_path=tmp_path_factory.mktemp("confine") / "c.duckdb")
    opened = open_store(config)
    yield opened
    opened.close()


@pytest.fixture
def queries(store: Store) -> ClientQueries:
    return ClientQueries(store, AggregatorConfig(queries_max=2))


def rows(queries: ClientQueries, sql: str, **parameters: int | str | None) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for batch in queries.run(sql, parameters) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 + $n", [(6,)]),
        ("WITH a AS (SELECT $n AS x) FROM a", [(5,)]),
        ("VALUES ($n)", [(5,)]),
        ("SELECT count(*) FROM range($n)", [(5,)]),
        ("SELECT count(*) FROM memory_event WHERE rank = $n", [(0,)]),
        ("SELECT x FROM (VALUES (1), (2)) t(x) UNION ALL SELECT $n ORDER BY ALL", [(1,), (2,), (5,)]),
        ("-- a comment\nSELECT $n -- another\n;", [(5,)]),
    ],
)
def test_a_reading_statement_runs(
    queries: ClientQueries, sql: str, expected: list[tuple[object, ...]]
) -> None:
    assert rows(queries, sql, n=5) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW TABLES",
        "DESCRIBE memory_event",
        "SUMMARIZE session",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "SELECT * FROM job_peak('s')",
        "SELECT * FROM peak_by_rank",
        "PIVOT memory_event ON action IN ('alloc', 'free_completed') USING sum(size_bytes) GROUP BY rank",
        "SELECT * FROM memory_event PIVOT (count(*) FOR action IN ('alloc') GROUP BY rank)",
        "UNPIVOT session ON world_size INTO NAME n VALUE v",
        "SELECT table_name, comment FROM duckdb_tables()",
    ],
)
def test_describing_explaining_views_and_macros_are_allowed(queries: ClientQueries, sql: str) -> None:
    rows(queries, sql)


ESCAPES = [
    "COPY (SELECT 1) TO 'out.csv'",
    "COPY session FROM 'in.csv'",
    "EXPORT DATABASE 'out'",
    "IMPORT DATABASE 'in'",
    "ATTACH 'other.duckdb'",
    "ATTACH ':memory:' AS other",
    "DETACH c",
    "USE main",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '1TB'",
    "SET VARIABLE x = 1",
    "RESET threads",
    "PRAGMA enable_profiling",
    "PRAGMA table_info('session')",
    "CALL pragma_version()",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "CREATE TABLE t (x INTEGER)",
    "CREATE TEMP TABLE t (x INTEGER)",
    "CREATE OR REPLACE MACRO m() AS 1",
    "CREATE SECRET (TYPE s3)",
    "DROP TABLE session",
    "ALTER TABLE session ADD COLUMN x INTEGER",
    "COMMENT ON TABLE session IS 'x'",
    "INSERT INTO session (session_id, source) VALUES ('x', 'y')",
    "UPDATE session SET name = 'x'",
    "DELETE FROM session",
    "TRUNCATE session",
    "MERGE INTO session USING session AS s ON (true) WHEN MATCHED THEN DELETE",
    "WITH x AS (INSERT INTO session (session_id, source) VALUES ('x', 'y') RETURNING name) SELECT * FROM x",
    "WITH x AS (DELETE FROM session RETURNING name) SELECT * FROM x",
    "EXPLAIN ANALYZE DELETE FROM session",
    "EXPLAIN ANALYZE SELECT * FROM checkpoint()",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE session",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'secrets.parquet'",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_duckdb('/etc/passwd')",
    "SELECT 1 WHERE 1 IN (SELECT 2 FROM read_blob('/etc/passwd'))",
    "SELECT (SELECT count(*) FROM system.main.checkpoint())",
    "SELECT * FROM ChEckPoint()",
    "SELECT * FROM query('SELECT * FROM checkpoint()')",
    "SELECT * FROM query_table('session')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM python_arrow_scan(1, 2, 3)",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM truncate_duckdb_logs()",
    "SELECT * FROM enable_logging()",
    "SELECT write_log('x')",
    "SELECT list_transform([1], lambda x: write_log('x'))",
    "SELECT * FROM config",
    "SELECT * FROM store",
]


@pytest.mark.parametrize("sql", ESCAPES)
def test_what_leaves_the_data_is_refused_and_nothing_changes(
    queries: ClientQueries, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RankmemError) as caught:
        rows(queries, sql)
    assert caught.value.code in (Code.DENIED, Code.INVALID)
    assert list(tmp_path.iterdir()) == []
    assert rows(queries, "SELECT (SELECT count(*) FROM session), current_database()") == [(0, "c")]


@pytest.mark.parametrize(
    "sql",
    [
        "PIVOT memory_event ON action USING sum(size_bytes)",
        "SELECT * FROM (PIVOT memory_event ON action USING count(*))",
        "PIVOT query('FROM gap') ON rank USING count(*)",
    ],
)
def test_a_pivot_without_its_values_says_how_to_give_them(queries: ClientQueries, sql: str) -> None:
    with pytest.raises(RankmemError, match="PIVOT without its values") as caught:
        rows(queries, sql)
    assert caught.value.code is Code.DENIED
    assert "IN ('a', 'b')" in caught.value.hint


def test_a_pivot_with_its_values_is_checked_as_all_others(queries: ClientQueries) -> None:
    for source in ("query('FROM gap')", "read_csv('/etc/passwd')", "checkpoint()"):
        with pytest.raises(RankmemError) as caught:
            rows(queries, f"PIVOT {source} ON rank IN (0) USING count(*)")
        assert caught.value.code is Code.DENIED


def test_a_statement_with_an_error_is_invalid_and_says_where(queries: ClientQueries) -> None:
    with pytest.raises(RankmemError, match="memory_evnt") as caught:
        rows(queries, "SELECT * FROM memory_evnt")
    assert caught.value.code is Code.INVALID
    with pytest.raises(RankmemError, match="does not parse"):
        rows(queries, "SELEC 1")


def test_a_statement_that_runs_too_long_is_stopped(queries: ClientQueries) -> None:
    with pytest.raises(RankmemError, match=r"longer than 0\.1 s") as caught:
        list(queries.run("SELECT count(*) FROM range(1000000000000)", {}, timeout_s=0.1))
    assert caught.value.code is Code.EXHAUSTED


def test_too_many_rows_end_with_an_error_not_with_a_cut_result(queries: ClientQueries) -> None:
    with pytest.raises(RankmemError, match="more than 10 rows"):
        list(queries.run("SELECT * FROM range(11)", {}, row_limit=10))
    assert sum(batch.num_rows for batch in queries.run("SELECT * FROM range(10)", {}, row_limit=10)) == 10


def test_more_statements_at_once_than_allowed_are_refused_and_room_comes_back(queries: ClientQueries) -> None:
    held = [queries.run("SELECT * FROM range(100000)", {}) for _ in range(2)]
    for result in held:
        next(result)
    with pytest.raises(RankmemError, match="2 statements are running"):
        rows(queries, "SELECT 1")
    held[0].close()  # type: ignore[attr-defined]  # a generator
    assert rows(queries, "SELECT 1") == [(1,)]


def test_a_statement_under_way_can_be_stopped_for_the_writer(queries: ClientQueries) -> None:
    result = queries.run("SELECT * FROM range(100000000)", {})
    next(result)
    queries.interrupt_all(RankmemError(Code.UNAVAILABLE, "ingest needed the memory"))
    with pytest.raises(RankmemError, match="ingest needed"):
        list(result)


def test_a_client_that_goes_away_stops_its_statement(queries: ClientQueries) -> None:
    watching = []
    result = queries.run("SELECT * FROM range(100000000)", {}, watch=watching.append)
    next(result)
    watching[0]()
    with pytest.raises(RankmemError, match="client is gone"):
        list(result)
    watching[0]()  # after its end: nothing


def test_an_empty_result_still_has_its_schema(queries: ClientQueries) -> None:
    (batch,) = queries.run("SELECT seq, action FROM memory_event", {})
    assert batch.schema.names == ["seq", "action"]
