"""The store of a served lake is away, or hangs: questions are answered from what is known, and say so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from ingest_client import IngestClient
from lake_serving import SESSION, Log, recorded_logs, send, serving
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.lake import freshness, lanes
from rankmem_aggregator.lake.catalog import Catalog
from rankmem_aggregator.page.answering import Answering
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.pool import Pool
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_aggregator.query.missing import COMPLETE_KEY, missing_of
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.server.aggregator import Aggregator
from rankmem_cli.main import app
from rankmem_protos.errors import Code, RankmemError
from waiting import until

AWAY = "no route to the store"
_DATABASE = {route.path: route for route in ROUTES if isinstance(route, DatabaseRoute)}
_SESSION = {route.path: route for route in ROUTES if isinstance(route, SessionRoute)}


def run(*arguments: str) -> tuple[str, str]:
    """A verb at the aggregator whose address is the last argument."""
    done = CliRunner().invoke(app, [*arguments[:-1], "--aggregator", arguments[-1]], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Log]:
    return recorded_logs(tmp_path_factory.mktemp("logs"), ranks=2, attempts=1)


class Store:
    """Reading the lake's newest version: works, fails or hangs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_away, self.is_back = False, threading.Event()
        self.is_back.set()
        self.num_tried = 0
        patch.setattr(lanes.Lanes, "refresh", self._around(lanes.Lanes.refresh))

    def hang(self) -> None:
        self.is_back.clear()

    def _around(self, original: Callable[[lanes.Lanes], Catalog]) -> Callable[[lanes.Lanes], Catalog]:
        def refresh(these: lanes.Lanes) -> Catalog:
            self.num_tried += 1
            self.is_back.wait()
            if self.is_away:
                raise RankmemError(Code.UNAVAILABLE, AWAY)
            return original(these)

        return refresh


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(freshness, "FRESH_S", 0.0)
    made = Store(monkeypatch)
    yield made
    made.is_away = False
    made.is_back.set()


def test_a_question_is_answered_while_a_commit_waits_for_the_store(
    tmp_path: Path, logs: list[Log], store: Store
) -> None:
    with serving(tmp_path / "lake") as aggregator, connect(aggregator.address) as queries:
        send(aggregator.address, logs[:1])
        before = queries.peak(SESSION)
        assert missing_of(before) == []
        with IngestClient(aggregator.address, receipts=True) as client:
            client.send(open_spool=logs[1].opening)
            client.reply()
            store.is_away = True
            client.send(batch=logs[1].batches[0])
            tried = store.num_tried
            until("its commit is made, and looked for", lambda: store.num_tried > tried + 2)
            answer = queries.peak(SESSION)
            assert set(before["rank"].to_pylist()) <= set(answer["rank"].to_pylist())
            (told,) = missing_of(answer) or [""]
            assert told.startswith(f"{tmp_path / 'lake'} cannot be read now (no route to the store)")
            assert answer.schema.metadata[COMPLETE_KEY] == b"None"
            assert queries.sql("SELECT 1 AS one")["one"].to_pylist() == [1]
            assert "no route to the store" in queries.stale
            store.is_away = False
            client.acks(1)
        until("it is back", lambda: missing_of(queries.peak(SESSION)) == [])
        assert queries.stale == ""


def test_a_question_does_not_wait_for_a_store_that_hangs(
    tmp_path: Path, logs: list[Log], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "lake") as aggregator, connect(aggregator.address) as queries:
        send(aggregator.address, logs[:1])
        before = queries.peak(SESSION)
        monkeypatch.setattr(freshness, "WAIT_S", 0.2)
        store.hang()
        for _ in range(2):
            answer = queries.peak(SESSION)
            assert answer.to_pylist() == before.to_pylist()
            (told,) = missing_of(answer) or [""]
            assert told.startswith(f"{tmp_path / 'lake'} has not answered for ")
        store.is_back.set()
        until("it is back", lambda: missing_of(queries.peak(SESSION)) == [])


def test_the_first_question_fails_and_names_a_store_that_hangs(
    tmp_path: Path, logs: list[Log], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "WAIT_S", 0.2)
    store.hang()
    with serving(tmp_path / "lake") as aggregator, connect(aggregator.address) as queries:
        with pytest.raises(RankmemError, match=f"{tmp_path / 'lake'} has not answered for") as failed:
            queries.sessions()
        assert failed.value.code is Code.UNAVAILABLE
        assert failed.value.hint == "ask again when the store is back"
        store.is_back.set()

        def is_answered() -> bool:
            with contextlib.suppress(RankmemError):
                return queries.sessions().num_rows == 0
            return False

        until("it is back", is_answered)


@pytest.fixture
def aggregator(tmp_path: Path, logs: list[Log], store: Store) -> Iterator[Aggregator]:
    """It has stored a session that has ended."""
    with serving(tmp_path / "lake") as opened:
        send(opened.address, logs)
        yield opened


def test_a_copy_says_that_it_is_old(aggregator: Aggregator, store: Store, tmp_path: Path) -> None:
    with connect(aggregator.address) as queries:
        store.is_away = True
        queries.copy_to(tmp_path / "copy.duckdb")
        assert AWAY in queries.stale
        (remark,) = export(queries, "duckdb", tmp_path / "export.duckdb").remarks
        assert AWAY in remark
        _, told = run("export", "duckdb", str(tmp_path / "verb.duckdb"), aggregator.address)
        assert told.count(AWAY) == 1
        store.is_away = False
        assert export(queries, "duckdb", tmp_path / "later.duckdb").remarks == []


@pytest.mark.parametrize("is_away_first", [True, False])
def test_an_export_says_that_it_is_old_whichever_of_its_statements_was(
    aggregator: Aggregator, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_away_first: bool
) -> None:
    with connect(aggregator.address) as queries:
        original = queries._missing

        def missing(full_id: str) -> pa.Table:
            store.is_away = is_away_first
            found = original(full_id)
            store.is_away = not is_away_first
            return found

        monkeypatch.setattr(queries, "_missing", missing)
        result = export(queries, "csv", tmp_path / "out", session=SESSION)
        manifest = json.loads((tmp_path / "out" / "_rankmem_export.json").read_text())
        for lines in (result.remarks, manifest["missing"], manifest["remarks"]):
            assert [line for line in lines if AWAY in line]


def test_an_answer_is_old_if_any_of_its_statements_was(
    aggregator: Aggregator, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Queries._missing

    def missing(self: Queries, full_id: str) -> pa.Table:
        store.is_away = False
        return original(self, full_id)

    monkeypatch.setattr(Queries, "_missing", missing)
    with connect(aggregator.address) as queries:
        store.is_away = True
        (line,) = missing_of(queries.peak(SESSION)) or [""]
        assert AWAY in line
        assert missing_of(queries.peak(SESSION)) == []
        store.is_away = True
        assert queries.sessions().num_rows
        assert AWAY in queries.stale
        store.is_away = False
        assert queries.sessions().num_rows
        assert queries.stale == ""
    for verb in ("peak", "peak --format json", "job-peak", "timeline --by job", "sessions"):
        store.is_away = True
        assert AWAY in run(*verb.split(), aggregator.address)[1], verb


def test_rows_are_old_if_the_store_came_back_while_they_were_read(
    aggregator: Aggregator, store: Store
) -> None:
    with connect(aggregator.address) as queries, connect(aggregator.address) as other:
        for is_read_to_its_end in (False, True):
            store.is_away = True
            rows = queries.stream("SELECT range AS number, repeat('x', 100) AS text FROM range(500_000)")
            next(rows)
            store.is_away = False
            assert other.sql("SELECT 1 AS one").num_rows
            assert other.stale == ""
            assert not is_read_to_its_end or sum(batch.num_rows for batch in rows)
            rows.close()  # type: ignore[attr-defined]
            assert AWAY in queries.stale


def test_the_page_says_that_its_answers_are_old_and_does_not_keep_that(
    aggregator: Aggregator, store: Store
) -> None:
    with contextlib.closing(Pool(lambda: connect(aggregator.address), size=1)) as pool:
        answering = Answering(pool)

        def answers() -> list[pa.Table]:
            answering._states.clear()  # a second later
            asked = [
                answering.of_database(_DATABASE["/sessions"], []),
                answering.of_database(_DATABASE["/sql"], [("sql", "SELECT 1 AS one")]),
                answering.of_session(_SESSION["/job"], SESSION, []),
                answering.of_session(_SESSION["/gaps"], SESSION, []),
            ]
            return [pa.ipc.open_stream(asyncio.run(one).plain()).read_all() for one in asked]

        for is_away in (True, False, True, False):
            store.is_away = is_away
            for answer in answers():
                assert any(AWAY in line for line in missing_of(answer) or []) is is_away
                assert not is_away or answer.schema.metadata[COMPLETE_KEY] == b"None"
