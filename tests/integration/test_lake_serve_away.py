"""The store of a served lake is away, or hangs: questions are answered from what is known, and say so."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest_client import IngestClient
from lake_serving import SESSION, Log, recorded_logs, send, serving
from rankmem_aggregator import connect
from rankmem_aggregator.lake import freshness, lanes
from rankmem_aggregator.lake.catalog import Catalog
from rankmem_aggregator.query.missing import COMPLETE_KEY, missing_of
from rankmem_protos.errors import Code, RankmemError
from waiting import until

HOUR_S = 3600.0


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
                raise RankmemError(Code.UNAVAILABLE, "no route to the store")
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
