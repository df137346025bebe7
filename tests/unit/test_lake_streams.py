"""What a lake cannot give amid an answer is said in its own words, not as a fault of the reader's disk."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial as partial_of
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner, Result

from constructed import store_rows
from failing_lake import EVENTS as NUM_EVENTS
from failing_lake import FailingLake, many_events
from lake_pieces import catalog_of, in_pieces
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.lake import compact as compacting
from rankmem_aggregator.lake import queries as lake_queries
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.page.answers.sql import SqlAsked, sql
from rankmem_aggregator.query.local import InstanceQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_protos.errors import Code, RankmemError
from two_sessions import NEW, OLD, two_sessions

pytestmark = pytest.mark.slow

EVENTS = "SELECT * FROM memory_event"


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake in which a stretch of a rank stayed on its host."""
    folder = tmp_path_factory.mktemp("partial")
    database = two_sessions(folder / "two.duckdb")
    with duckdb.connect(database) as connection:
        stretch = {"session_id": NEW, "attempt": 0, "rank": 1, "sequence_first": 0, "sequence_last": 9}
        store_rows(
            connection, "availability", [stretch | {"place": "host", "spool_id": "s", "host_uid": "h"}]
        )
    import_database(database, str(folder / "lake"))
    return folder / "lake"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a file that is not read at once."""
    folder = tmp_path_factory.mktemp("large")
    import_database(many_events(folder / "two.duckdb"), str(folder / "lake"))
    return folder / "lake"


def command(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))


def read(queries: Queries, out: Path) -> object:
    return list(queries.stream(EVENTS))


def exported(queries: Queries, out: Path, session: str = NEW) -> object:
    return export(queries, "parquet", out, session=session)


def shown(queries: Queries, out: Path) -> object:
    return sql(queries, SqlAsked(sql=EVENTS))


def check_not_here(error: object) -> None:
    assert isinstance(error, RankmemError)
    assert error.code is Code.NOT_FOUND
    assert f"events of rank 1 of session {NEW} are not here" in error.message
    assert error.hint == f"rankmem fetch {NEW} --ranks 1 --aggregator HOST:PORT brings them"


@pytest.mark.parametrize("ask", [read, exported, shown])
def test_rows_that_stayed_on_a_host_are_named_wherever_an_answer_is_read_in_pieces(
    partial: Path, tmp_path: Path, ask: Callable[[Queries, Path], object]
) -> None:
    with connect(f"lake:{partial}") as queries, pytest.raises(RankmemError) as refused:
        ask(queries, tmp_path / "out")
    check_not_here(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["--format", "json"], ["--format", "csv"], ["--out", "answer.parquet"]]
)
def test_a_command_names_them_too(
    partial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("sql", EVENTS, "--lake", str(partial), *arguments)
    assert done.exit_code == 1
    check_not_here(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def store(large: Path) -> FailingLake:
    return FailingLake(str(large))


@pytest.fixture
def remote(store: FailingLake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    monkeypatch.setattr(lake_queries, "LakeFiles", lambda address: store)
    with lake_queries.LakeQueries(store.root) as queries:
        yield queries


def check_failed(error: RankmemError, store: FailingLake, table: str = "memory_event/") -> None:
    assert error.code is Code.UNAVAILABLE
    assert error.message.startswith(f"the lake's file {store.root}/{table}")
    assert error.message.endswith("cannot be read: Generic S3 error: no route: to it")


@pytest.mark.parametrize("ask", [read, partial_of(exported, session=OLD), shown])
def test_a_store_that_fails_amid_an_answer_is_named_with_its_file(
    store: FailingLake, remote: Queries, tmp_path: Path, ask: Callable[[Queries, Path], object]
) -> None:
    store.fails = True
    with pytest.raises(RankmemError) as refused:
        ask(remote, tmp_path)
    check_failed(refused.value, store)
    store.fails = False
    assert remote.sql("SELECT count(*) AS n FROM memory_event")["n"].to_pylist() == [NUM_EVENTS]


def test_a_file_that_several_threads_read_has_the_rows_that_were_written(remote: Queries) -> None:
    text = "SELECT sum(requested_bytes)::BIGINT AS bytes, bit_xor(hash(seq)) AS seqs FROM memory_event"
    with connect(f"lake:{remote.target}") as local:
        expected = local.sql(text)
    for _ in range(10):  # each time from the store: a connection keeps what it has read
        with lake_queries.LakeQueries(remote.target) as queries:
            assert queries.sql(text) == expected


def test_an_error_is_not_that_of_a_question_before(store: FailingLake, remote: Queries) -> None:
    store.fails = True
    with pytest.raises(RankmemError):
        list(remote.stream(EVENTS))
    with pytest.raises(RankmemError, match="syntax error") as refused:
        remote.sql("SELEC 1")
    assert refused.value.code is Code.INVALID


def test_a_question_that_is_given_up_amid_its_answer_is_interrupted() -> None:
    with InstanceQueries("memory", _Empty()) as queries:  # type: ignore[arg-type]
        batches = queries.stream("SELECT i FROM range(1000000000000) AS t(i)")
        next(batches)
        queries.interrupt()
        with pytest.raises(RankmemError, match="Interrupted") as refused:
            list(batches)
    assert refused.value.code is Code.EXHAUSTED


class _Empty:
    """An instance without tables."""

    is_whole = True

    def __init__(self) -> None:
        self._connection = duckdb.connect()

    def cursor(self, text: str) -> duckdb.DuckDBPyConnection:
        return self._connection.cursor()

    def close(self) -> None:
        self._connection.close()


def test_a_compaction_over_a_store_that_fails_says_so_and_not_that_there_is_no_room(
    partial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails once the files were looked at."""
    in_pieces(partial, str(tmp_path / "cut"), random.Random(1), 2)
    store = FailingLake(str(tmp_path / "cut"))
    store.gives = 0.0
    before = catalog_of(tmp_path / "cut")

    def sound(*about: object) -> str:
        store.fails = True
        return ""

    monkeypatch.setattr(compacting, "LakeFiles", lambda address: store)
    monkeypatch.setattr(compacting, "fault_of", sound)
    monkeypatch.setattr(compacting, "sessions_over", lambda *about: frozenset())
    with pytest.raises(RankmemError) as refused:
        compact_lake(store.root, [NEW])
    check_failed(refused.value, store, "")
    assert catalog_of(tmp_path / "cut") == before
