"""The Python client on a running aggregator: the same answers as from the file, errors with code and hint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.server import aggregator as server
from rankmem_protos.errors import Code, RankmemError
from two_sessions import NEW, two_sessions


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_sessions(tmp_path_factory.mktemp("remote") / "mem.duckdb")


@pytest.fixture(scope="module")
def from_file(database: Path) -> dict[str, pa.Table]:
    with connect(database) as queries:
        return {name: ask(queries) for name, ask in QUESTIONS.items()}


@pytest.fixture(scope="module")
def aggregator(database: Path, from_file: dict[str, pa.Table]) -> Iterator[server.Aggregator]:
    with server.open(AggregatorConfig(database_path=database, listen="127.0.0.1:0")) as running:
        yield running


QUESTIONS: dict[str, Callable[[Queries], pa.Table]] = {
    "sessions": lambda queries: queries.sessions(),
    "ranks": lambda queries: queries.ranks(),
    "hosts": lambda queries: queries.hosts(),
    "peak": lambda queries: queries.peak(NEW[:11] + "b"),
    "peak_by_host": lambda queries: queries.peak_by_host(),
    "job_peak": lambda queries: queries.job_peak(),
    "ops": lambda queries: queries.ops(by="rank", at="total"),
    "lines": lambda queries: queries.ops(by="line"),
    "live": lambda queries: queries.live(0),
    "curve": lambda queries: queries.curve(0),
    "stack": lambda queries: queries.stack(1),
    "sql": lambda queries: queries.sql(
        "SELECT $a AS a, $b AS b, $c AS c, $d AS d, $e IS NULL AS e",
        {"a": 1 << 40, "b": 0.5, "c": "text", "d": True, "e": None},
    ),
    "empty": lambda queries: queries.sql("SELECT * FROM oom"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_aggregator_answers_as_its_file_does(
    aggregator: server.Aggregator, from_file: dict[str, pa.Table], name: str
) -> None:
    with connect(aggregator.address) as queries:
        answer = QUESTIONS[name](queries)
    assert answer.schema.names == from_file[name].schema.names
    assert answer.to_pylist() == from_file[name].to_pylist()


def test_a_file_that_an_aggregator_holds_leads_to_it(aggregator: server.Aggregator, database: Path) -> None:
    with connect(database) as queries:
        assert isinstance(queries, RemoteQueries)
        assert queries.target == aggregator.address
        assert queries.session_id() == NEW


@pytest.mark.parametrize(
    ("sql", "code"),
    [("SELECT * FROM nonsense", Code.INVALID), ("DELETE FROM session", Code.DENIED), ("SELEC", Code.INVALID)],
)
def test_the_aggregators_error_comes_back_with_its_code(
    aggregator: server.Aggregator, sql: str, code: Code
) -> None:
    with connect(aggregator.address) as queries, pytest.raises(RankmemError) as caught:
        queries.sql(sql)
    assert caught.value.code is code
    assert caught.value.message
    assert "grpc" not in str(caught.value).lower()


def test_a_reader_may_stop_in_the_middle_of_a_result(aggregator: server.Aggregator) -> None:
    with connect(aggregator.address) as queries:
        stream = queries.stream("SELECT * FROM range(5000000)")
        assert next(stream).num_rows > 0
        stream.close()  # type: ignore[attr-defined]
        assert queries.sql("SELECT 1 AS n").to_pylist() == [{"n": 1}]


def test_without_an_aggregator_at_the_address_the_hint_is_how_to_start_one() -> None:
    with connect("127.0.0.1:1") as queries, pytest.raises(RankmemError, match=r"127\.0\.0\.1:1") as caught:
        queries.sessions()
    assert caught.value.code is Code.UNAVAILABLE
    assert "rankmem serve" in caught.value.hint


def test_the_address_of_a_dead_aggregator_is_not_followed(tmp_path: Path) -> None:
    path = two_sessions(tmp_path / "mem.duckdb")
    stale = {
        "address": "127.0.0.1:1",
        "pid": 2**22 + 1,
        "process_start_ticks": 1,
        "host_name": "",
        "version": 1,
    }
    (tmp_path / "mem.duckdb.address").write_text(json.dumps(stale))
    with connect(path) as queries:
        assert queries.session_id() == NEW
