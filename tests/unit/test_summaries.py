"""The summaries of groups, told in passes cut anywhere: what a question answers must not depend on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_views_groups import BY, logs, rows, summits

from constructed import SESSION, RankLog, clear, empty_database, store_logs
from rankmem_aggregator.summary_pass import DUE, NOTHING, Pass, Rank

MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with empty_database() as opened:
        yield opened


@pytest.fixture
def database(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    clear(connection)
    return connection


def summarise(
    connection: duckdb.DuckDBPyConnection,
    log: RankLog,
    cuts: list[int],
    *,
    final: bool = False,
    remember: bool = True,
) -> None:
    """Tells the log up to each cut in a pass of its own; ``remember``: no restart between them."""
    alive: dict[Rank, pa.Table] = {}
    place = {"number": 0, "session_id": log.session_id, "attempt": log.attempt, "rank": log.rank}
    seq_from = NOTHING
    for cut in cuts:
        told = {"seq_from": seq_from, "seq_upto": cut, "final": final and cut == cuts[-1]}
        due = pa.Table.from_pylist([place | told], schema=DUE)
        alive |= Pass(connection=connection, due=due, alive=alive).run()
        seq_from, alive = cut, alive if remember else {}


def of_groups(connection: duckdb.DuckDBPyConnection, by: str) -> dict[Any, Any]:
    answer = rows(connection, "SELECT * FROM peak_by_group($id, $by)", id=SESSION, by=by)
    names = ("bytes_at_rank_peak", "peak_bytes", "peak_seq", "peak_time_ns")
    return {row["group_name"]: tuple(row[name] for name in names) for row in answer if row["peak_bytes"]}


@MANY
@given(log=logs(), by=BY, places=st.lists(st.integers(-1, 30), max_size=4), remember=st.booleans())
def test_a_group_has_one_peak_wherever_the_summaries_were_cut(
    database: duckdb.DuckDBPyConnection, log: RankLog, by: str, places: list[int], remember: bool
) -> None:
    clear(database)
    store_logs(database, [log])
    if not log.events:
        return
    before = of_groups(database, by)
    assert {name: row[1:3] for name, row in before.items()} == summits(log, by)
    summarise(database, log, sorted(set(places)), remember=remember)
    assert of_groups(database, by) == before


@MANY
@given(log=logs(), by=BY, places=st.lists(st.integers(-1, 20), max_size=3))
def test_of_a_log_that_has_ended_the_summaries_alone_answer(
    database: duckdb.DuckDBPyConnection, log: RankLog, by: str, places: list[int]
) -> None:
    clear(database)
    store_logs(database, [log])
    if not log.events:
        return
    before = of_groups(database, by)
    summarise(database, log, [*sorted(set(places)), 1000], final=True)
    answer = "SELECT * FROM block_change($id, $by, only_recent := true)"
    assert rows(database, answer, id=SESSION, by=by) == []
    assert of_groups(database, by) == before
