"""The statements that a client may run, and those that are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import duckdb
import pytest

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.sandbox import client_queries, function_list, running_statements
from rankmem_aggregator.sandbox.catalog import Catalog, read_catalog
from rankmem_aggregator.sandbox.client_queries import ClientQueries
from rankmem_aggregator.sandbox.function_list import REFUSED
from rankmem_aggregator.sandbox.running_statements import RunningStatements, fingerprint
from rankmem_aggregator.sandbox.statements import check_statement
from rankmem_aggregator.sql import page_names, page_text, query_names, query_text
from rankmem_aggregator.store.schema import ALL_TABLES
from rankmem_aggregator.store.store import Store, open_store
from rankmem_aggregator.supervision.crashed_statements import CrashedStatements, StatementGuard
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
        ("SELECT repeat('x', 3), lpad('y', 2, '-'), $n", [("xxx", "-y", 5)]),
        ("SELECT len(range(100000)), printf('%5d|', $n)", [(100000, "    5|")]),
        ("SELECT fmod(fmod(7, 4), 2), $n", [(1.0, 5)]),
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
    ("sql", "columns"),
    [
        ("SHOW TABLES", ["name"]),
        ("DESCRIBE memory_event", ["column_name", "column_type"]),
        ("SUMMARIZE session", ["column_name", "column_type", "min", "max"]),
        ("EXPLAIN SELECT 1", ["explain_key", "explain_value"]),
        ("EXPLAIN ANALYZE SELECT 1", ["explain_key", "explain_value"]),
        ("SELECT * FROM job_peak('s')", ["device_type", "job_peak_bytes"]),
        ("SELECT * FROM peak_by_rank", ["session_id", "attempt", "rank"]),
        (
            "PIVOT memory_event ON action IN ('alloc', 'free_completed') USING sum(size_bytes) GROUP BY rank",
            ["rank", "alloc", "free_completed"],
        ),
        (
            "SELECT * FROM memory_event PIVOT (count(*) FOR action IN ('alloc') GROUP BY rank)",
            ["rank", "alloc"],
        ),
        ("UNPIVOT session ON world_size INTO NAME n VALUE v", ["session_id", "name"]),
        ("SELECT table_name, comment FROM duckdb_tables()", ["table_name", "comment"]),
    ],
)
def test_describing_explaining_views_and_macros_are_allowed(
    queries: ClientQueries, sql: str, columns: list[str]
) -> None:
    batches = list(queries.run(sql, {}))
    assert batches[0].schema.names[: len(columns)] == columns


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


def test_a_statement_that_did_not_run_is_not_to_blame(store: Store) -> None:
    """Where all places are taken it is refused: what ends the process then is none of its doing."""
    descriptor = running_statements.shared_memory(2)
    guard = StatementGuard(RunningStatements(descriptor), CrashedStatements(), lambda name: None)
    queries = ClientQueries(store, AggregatorConfig(queries_max=2), guard)
    running = [f"SELECT {number} FROM range(100000)" for number in range(2)]
    held = [queries.run(sql, {}) for sql in running]
    for result in held:
        next(result)
    with pytest.raises(RankmemError, match="2 statements are running"):
        rows(queries, "SELECT 1")
    held[0].close()  # type: ignore[attr-defined]  # a generator
    running[0] = "SELECT 3 FROM range(100000)"
    held[0] = queries.run(running[0], {})
    next(held[0])
    assert running_statements.take(descriptor) == sorted(fingerprint(sql, {}) for sql in running)
    for result in held:
        result.close()  # type: ignore[attr-defined]
    os.close(descriptor)


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


def test_every_function_of_duckdb_with_an_effect_is_refused_or_known_to_be_harmless(store: Store) -> None:
    harmless = {
        "current_connection_id", "current_query", "current_query_id", "current_transaction_id", "currval",
        "error", "gen_random_uuid", "random", "stats", "uuid", "uuidv4", "uuidv7", "vector_type",
    }  # fmt: skip
    with store.cursor() as cursor:
        found = cursor.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE has_side_effects"
        ).fetchall()
    assert {name for (name,) in found} - set(REFUSED) <= harmless


def test_names_of_a_with_are_counted_as_often_as_they_are_planned(queries: ClientQueries) -> None:
    shared = "WITH a AS (SELECT 1 AS x) SELECT count(*) FROM " + ", ".join(f"a a{n}" for n in range(100))
    assert rows(queries, shared) == [(1,)]
    # Another name of the same spelling further in is what it says there.
    shadowed = "WITH a AS (SELECT 1 AS x) SELECT * FROM (WITH a AS (SELECT * FROM a, a b) SELECT * FROM a)"
    assert rows(queries, shadowed) == [(1, 1)]
    nested = "SELECT 1 AS x"
    for _ in range(9):
        nested = f"WITH a AS ({nested}) SELECT a.x FROM a, a b"
    with pytest.raises(RankmemError, match="SELECTs and tables") as caught:
        rows(queries, nested)
    assert caught.value.code is Code.DENIED


def test_a_count_in_disguise_is_refused(queries: ClientQueries) -> None:
    for count in ("$n", "1000000000::INT", "10 * 1000000", "1e9", "-1 + 100000000", "(SELECT 1000000)"):
        with pytest.raises(RankmemError, match="repeat must be given a number"):
            rows(queries, f"SELECT repeat('x', {count})", n=1_000_000_000)


def test_the_macros_of_the_database_are_read_once(
    store: Store, queries: ClientQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = client_queries.read_catalog
    monkeypatch.setattr(client_queries, "read_catalog", lambda *given: asked.append(given) or real(*given))
    for _ in range(3):
        rows(queries, "SELECT upper('a') FROM job_peak('s')")
    assert len(asked) == 1


def test_every_spelling_of_a_refused_type_is_refused(store: Store, queries: ClientQueries) -> None:
    with store.cursor() as cursor:
        spellings = cursor.execute(
            "SELECT DISTINCT type_name FROM duckdb_types() "
            "WHERE logical_type IN ('AGGREGATE_STATE', 'BIGNUM', 'GEOMETRY', 'VARIANT')"
        ).fetchall()
    assert len(spellings) >= 4
    for (spelling,) in spellings:
        for cast in (
            f"NULL::{spelling}",
            f"TRY_CAST([NULL] AS STRUCT(a {spelling})[])",
            f'NULL::"{spelling}"',
        ):
            with pytest.raises(RankmemError, match=r"the type .* is not allowed"):
                rows(queries, f"SELECT {cast}")


def test_no_statement_of_ours_is_too_large_for_an_aggregator(store: Store) -> None:
    """Nor for one of a lake, where views stand as the tables."""
    refused = []
    with store.cursor() as cursor:
        catalog = read_catalog(cursor)
        for name, text_of in [(n, query_text) for n in query_names()] + [
            (n, page_text) for n in page_names()
        ]:
            try:
                check_statement(cursor, text_of(name), catalog)
            except RankmemError as error:
                refused.append((name, error.message))
    assert refused == []


def test_a_view_that_stands_as_a_table_counts_as_one(store: Store) -> None:
    with store.cursor() as cursor:
        views = cursor.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        assert ("memory_event",) in views
        assert ALL_TABLES.keys().isdisjoint(read_catalog(cursor).own_views)


def test_views_and_macros_count_as_what_their_planning_takes(queries: ClientQueries) -> None:
    for source in ("peak_by_rank", "main.peak_by_rank", "job_peak('s')"):
        assert rows(queries, f"SELECT count(*) FROM {source} a, {source} b")
        with pytest.raises(RankmemError, match="SELECTs and tables"):
            rows(queries, "SELECT 1 FROM " + ", ".join([source] * 70))
    with pytest.raises(RankmemError, match="joins 129 tables in one FROM"):
        rows(queries, "SELECT 1 FROM session" + ", session" * 128)


def test_an_aggregate_that_is_called_by_its_name_is_bound_as_if_it_were_called(
    queries: ClientQueries,
) -> None:
    assert rows(queries, "SELECT list_aggregate([1, 2, 3], 'sum'), list_sum([1, 2])") == [(6, 3)]
    assert rows(queries, "SELECT list_aggregate([1, 2, 3], 'reservoir_quantile', 0.5, 10)") == [(2,)]
    with pytest.raises(RankmemError, match="reservoir_quantile must be given a number"):
        rows(queries, "SELECT list_aggregate([1, 2, 3], 'RESERVOIR_QUANTILE', 0.5, 1000000)")


def test_an_internal_error_tells_nothing_of_the_process(
    queries: ClientQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise duckdb.InternalException("INTERNAL Error: no\n\nStack Trace:\n\n/home/me/lib/duckdb.so(+0x1)")

    monkeypatch.setattr(client_queries, "check_statement", fails)
    with pytest.raises(RankmemError) as caught:
        rows(queries, "SELECT 1")
    assert (caught.value.code, caught.value.message) == (Code.INTERNAL, "INTERNAL Error: no")


@pytest.fixture(scope="module")
def catalog(store: Store) -> Catalog:
    with store.cursor() as cursor:
        return read_catalog(cursor)


def test_every_function_of_the_installed_duckdb_is_allowed_or_refused(store: Store) -> None:
    with store.cursor() as cursor:
        new = function_list.unlisted(cursor)
    assert not new, "look at each: a reason in function_list.REFUSED, or `make functions`"


def test_a_function_that_nobody_has_listed_is_refused(
    queries: ClientQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = function_list.allowed() - {"upper", "sum", "row_number", "list_sum"}
    monkeypatch.setattr("rankmem_aggregator.sandbox.functions.allowed", lambda: less)
    for call in ("upper('a')", "'a'.UPPER()", "sum(1)", "row_number() OVER ()", "list_sum([1])"):
        with pytest.raises(RankmemError, match="is not on the list") as caught:
            rows(queries, f"SELECT {call}")
        assert caught.value.code is Code.DENIED
    with pytest.raises(RankmemError, match="must be given an allowed function's name"):
        rows(queries, "SELECT list_aggregate([1], 'sum')")


def test_no_function_is_both_allowed_and_refused() -> None:
    assert not [name for name in function_list.allowed() if function_list.why_refused(name)]


def test_a_function_that_stands_as_a_table_alone_runs_nowhere_as_a_value(
    store: Store, catalog: Catalog
) -> None:
    """So a list that leaves them out takes nothing from anyone."""
    tables = catalog.functions - function_list.allowed() - catalog.own_scalar_macros
    with store.cursor() as cursor:
        for name in sorted(name for name in tables if not function_list.why_refused(name)):
            for arguments in ("", "1", "'x'", "'x', 1"):
                with pytest.raises(duckdb.Error, match=r"was used as a scalar function|Catalog Error"):
                    cursor.execute(f'EXPLAIN SELECT "{name}"({arguments})')


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT -1 + 2 - 3 * 4 / 5 // 6 % 7 ** 2 ^ 2, 1 & 2 | 3 << 1 >> 1, ~1, @ -1, 5!",
        "SELECT 'a' || 'b' LIKE 'a' ESCAPE 'x', 'a' NOT ILIKE 'b' ESCAPE 'x', 'a' GLOB 'a*', 'a' ~ 'b'",
        "SELECT 'a' SIMILAR TO 'b', 'a' !~ 'b', 'a' ^@ 'a', 'a' NOT LIKE 'b', 'a' ~~~ 'b', 'a' !~~* 'b'",
        "SELECT [1, 2][1], [1, 2][1:2], [1] && [2], [1] @> [2], [1] <@ [2], [x + 1 FOR x IN [1] IF x > 0]",
        "SELECT {'a': 1}.a, MAP {1: 2}[1], (1, 2), row(1, 'a'), 1 IN (1, 2), 1 IN [1], 'a' IN 'ab'",
        "SELECT coalesce(NULL, 1), ifnull(1, 2), nullif(1, 2), if(true, 1, 2), try(1), 1 IS DISTINCT FROM 2",
        "SELECT extract(year FROM DATE '2020-01-01'), substring('a' FROM 1 FOR 2), position('a' IN 'b')",
        "SELECT overlay('abc' PLACING 'x' FROM 1), trim(BOTH 'a' FROM 'aba'), 'a' COLLATE NOCASE",
        "SELECT INTERVAL 1 DAY, INTERVAL '2' MONTH, TIMESTAMP '2020-01-01' AT TIME ZONE 'UTC', date(now())",
        "SELECT current_date, current_timestamp, localtime, current_user, current_schema, now(), today()",
        "SELECT '{\"a\": 1}'::JSON -> 'a', '{\"a\": 1}'::JSON ->> '$.a', '[1]'::JSON -> 0, unlist([1])",
        "SELECT count(*), count(), count(DISTINCT x), list(x ORDER BY x), any_value(x) FILTER (x > 1),"
        " mode() WITHIN GROUP (ORDER BY x), percentile_cont(0.5) WITHIN GROUP (ORDER BY x) FROM range(3) t",
        "SELECT grouping(x), grouping_id(x), sum(x) FROM range(3) t(x) GROUP BY ROLLUP (x)",
        "SELECT lag(x) OVER w, lead(x, 1) OVER w, first_value(x) OVER w, nth_value(x, 2) OVER w"
        " FROM range(3) t(x) WINDOW w AS (ORDER BY x)",
        "SELECT ntile(2) OVER w, rank() OVER w, sum(x) OVER w FROM range(3) t(x) WINDOW w AS (ORDER BY x)",
        "SELECT ARRAY(SELECT 1), EXISTS (SELECT 1), 1 = ANY (SELECT 1), 1 = ALL ([1, 2])",
        "SELECT list_transform([1], lambda x: x + 1), list_reduce([1, 2], lambda a, b: a + b)",
        "SELECT max(COLUMNS(*)), * EXCLUDE (seq) FROM memory_event GROUP BY ALL",
        "SELECT * FROM range(3) t(x) QUALIFY row_number() OVER (ORDER BY x) = 1",
        "SELECT utc_of(0), group_of('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h') FROM unnest([1])",
    ],
)
def test_what_the_parser_makes_of_syntax_is_on_the_list(store: Store, catalog: Catalog, sql: str) -> None:
    with store.cursor() as cursor:
        try:
            check_statement(cursor, sql, catalog)
        except RankmemError as refused:
            pytest.fail(f"refused: {refused.message}")


def test_a_function_that_does_not_exist_is_invalid_and_a_near_one_is_named(queries: ClientQueries) -> None:
    with pytest.raises(RankmemError, match="there is no function uper") as caught:
        rows(queries, "SELECT uper('a')")
    assert (caught.value.code, "upper" in caught.value.hint) == (Code.INVALID, True)
