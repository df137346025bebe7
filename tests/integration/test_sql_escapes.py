"""A client's SQL stays in its confines: each escape at a running aggregator, ingest beside hungry queries."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingest_client import IngestClient
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.machine import resident_bytes
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sandbox.memory_watch import MemoryWatch
from rankmem_aggregator.server import aggregator as server
from rankmem_protos.arrow_wire import decode_rows
from rankmem_protos.collector_pb2 import Batch
from rankmem_protos.errors import Code, RankmemError
from refused_sql import ENDED, REFUSED
from refused_sql_page import PAGE, confined, limit_of, page
from sample_batches import RankSource

ROWS = 2000
SHARED = "SELECT (SELECT count(*) FROM memory_event) AS events, (SELECT count(*) FROM session) AS sessions"


def events_of(batch: Batch) -> int:
    """Events on their way, counted on the wire."""
    return sum(
        decode_rows(rows.table, rows.arrow_ipc).num_rows
        for rows in batch.tables
        if rows.table == "memory_event"
    )


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Aggregator]:
    with confined(tmp_path_factory.mktemp("escapes")) as running:
        yield running


@pytest.fixture
def queries(aggregator: server.Aggregator) -> Iterator[Queries]:
    with connect(aggregator.address) as opened:
        yield opened


def test_there_are_more_than_forty_escapes_of_many_kinds() -> None:
    tried = [sql for group in REFUSED.values() for sql in group]
    assert len(tried) == len(set(tried)) > 100
    assert not set(tried) & set(ENDED)


@pytest.mark.parametrize("sql", [sql for group in REFUSED.values() for sql in group])
def test_what_leaves_the_data_is_refused_and_nothing_changes(
    aggregator: server.Aggregator, queries: Queries, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the aggregator runs in this process: its relative paths lead here
    beside = {path.name for path in aggregator.config.database_path.parent.iterdir()}
    before = queries.sql(SHARED)
    with pytest.raises(RankmemError) as caught:
        queries.sql(sql)
    assert caught.value.code in (Code.DENIED, Code.INVALID)
    assert caught.value.message
    assert list(tmp_path.iterdir()) == []
    assert {path.name for path in aggregator.config.database_path.parent.iterdir()} == beside
    assert queries.sql(SHARED) == before


@pytest.mark.parametrize("sql", ENDED)
def test_what_wants_too_much_is_ended_with_the_limit_said(queries: Queries, sql: str) -> None:
    with pytest.raises(RankmemError) as caught:
        queries.sql(sql)
    assert caught.value.code is Code.EXHAUSTED
    assert limit_of(caught.value.message) in ENDED[sql].split(" or ")
    assert caught.value.hint
    assert queries.sql("SELECT 1 AS n").to_pylist() == [{"n": 1}]


def test_the_documented_table_is_what_happens() -> None:
    assert page() == PAGE.read_text("utf-8"), "make docs"


def test_ingest_goes_on_while_queries_eat_the_memory(tmp_path: Path) -> None:
    config = AggregatorConfig(
        database_path=tmp_path / "hungry.duckdb",
        listen="127.0.0.1:0",
        memory_limit_bytes=256 << 20,
        threads=2,
        query_timeout_s=5.0,
    )
    hungry = [sql for sql, limit in ENDED.items() if "memory" in limit]
    over = threading.Event()
    sent = 0
    ended: list[RankmemError] = []

    def eat(number: int, address: str) -> None:
        with connect(address) as queries:
            while not over.is_set():
                try:
                    queries.sql(hungry[number % len(hungry)])
                except RankmemError as exc:
                    ended.append(exc)
                number += 1

    with server.open(config) as running:
        eaters = [threading.Thread(target=eat, args=(n, running.address)) for n in range(3)]
        for eater in eaters:
            eater.start()
        try:
            with IngestClient(running.address) as client:
                source = RankSource(rank=0)
                client.open(source)
                for _ in range(20):
                    batch = source.batch(ROWS)
                    sent += events_of(batch)
                    client.send(batch=batch)
                    client.acks(1)  # fails if it takes 30 s: ingest would have stood
        finally:
            over.set()
            for eater in eaters:
                eater.join()
        assert running.counters.refused == 0
        with connect(running.address) as queries:
            (row,) = queries.sql(
                "SELECT count(*) AS events, count(DISTINCT seq) AS seqs FROM memory_event"
            ).to_pylist()
    assert row == {"events": sent, "seqs": sent}
    assert ended
    assert {exc.code for exc in ended} <= {Code.EXHAUSTED, Code.UNAVAILABLE}, ended


def test_statements_are_stopped_when_the_process_grows_beyond_its_memory() -> None:
    stopped = threading.Event()
    held: list[pa.Buffer] = []
    watch = MemoryWatch(-(4 << 40), lambda: False, stopped.set)
    before = resident_bytes()
    assert before > 0
    watch.look_while(lambda: not stopped.is_set() and len(held) < 30)
    deadline = time.monotonic() + 20
    while not stopped.is_set() and time.monotonic() < deadline and len(held) < 30:
        held.append(pa.py_buffer(b"\1" * (64 << 20)))
    assert stopped.wait(5)
    assert resident_bytes() - before > 512 << 20


def test_statements_within_their_memory_are_left_alone(queries: Queries) -> None:
    stopped = threading.Event()
    watch = MemoryWatch(1 << 50, lambda: False, stopped.set)
    running = threading.Event()
    watch.look_while(lambda: not running.is_set())
    assert queries.sql("SELECT count(*) AS n FROM range(1000000)").to_pylist() == [{"n": 1000000}]
    running.set()
    assert not stopped.is_set()


def test_a_grouping_that_does_not_fit_spills_and_runs_to_its_end(tmp_path: Path) -> None:
    config = AggregatorConfig(
        database_path=tmp_path / "spills.duckdb",
        listen="127.0.0.1:0",
        memory_limit_bytes=256 << 20,
        threads=2,
    )
    grouped = "SELECT count(*) AS n FROM (SELECT hash(range) AS h, count(*) FROM range(10000000) GROUP BY 1)"
    with server.open(config) as running, connect(running.address) as queries:
        assert queries.sql(grouped).to_pylist() == [{"n": 10_000_000}]
