"""Commits that run out of memory: told apart whether they are done, never done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from rankmem_aggregator.batch import Spool
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.schema import INGEST_PROGRESS
from rankmem_aggregator.sequence import Progress
from rankmem_aggregator.store import Store, open_store
from rankmem_aggregator.stored import progress_rows
from sample_batches import RankSource

SHORT = duckdb.OutOfMemoryException("failed to allocate data of size 2.0 KiB")


class Flaky:
    """A connection whose statements fail as told: before they are done, or after."""

    def __init__(self, real: duckdb.DuckDBPyConnection) -> None:
        self.real = real
        self.fail: list[tuple[str, str, Exception]] = []

    def execute(self, sql: str, *more: object) -> object:
        for planned in list(self.fail):
            word, when, error = planned
            if sql.startswith(word):
                self.fail.remove(planned)
                if when == "after":
                    self.real.execute(sql, *more)
                raise error
        return self.real.execute(sql, *more)

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(AggregatorConfig(database_path=tmp_path / "m.duckdb"))
    yield opened
    opened.close()


@pytest.fixture
def flaky(store: Store) -> Flaky:
    flaky = Flaky(store._connection)
    store._connection = flaky  # type: ignore[assignment]
    return flaky


def written(store: Store) -> tuple[int, int]:
    """Events and spools stored."""
    row = store.read(
        "SELECT (SELECT count(*) FROM memory_event) AS e, (SELECT count(*) FROM ingest_progress) AS p"
    ).to_pylist()[0]
    return row["e"], row["p"]


def a_group() -> dict[str, object]:
    source = RankSource(rank=0)
    rows = source.rows(100)
    spool = Spool(spool_id=source.spool_id, session_id=source.session_id, attempt=0, rank=0)
    progress = Progress(spool=spool, last_sequence=source.next_sequence - 1, final=False)
    return {"memory_event": rows["memory_event"], INGEST_PROGRESS.name: progress_rows([progress])}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_raises_is_looked_at_before_it_is_tried_again(
    store: Store, flaky: Flaky, when: str
) -> None:
    group = a_group()
    count = group["memory_event"].num_rows  # type: ignore[attr-defined]
    flaky.fail = [("COMMIT", when, SHORT)]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)  # type: ignore[arg-type]
    assert written(store) == ((count, 1) if when == "after" else (0, 0))
    store.write(group)  # type: ignore[arg-type]
    assert written(store) == (count, 1)


def test_a_rollback_without_memory_is_made_up_for_before_the_next_use(store: Store, flaky: Flaky) -> None:
    group = a_group()
    count = group["memory_event"].num_rows  # type: ignore[attr-defined]
    flaky.fail = [("COMMIT", "before", SHORT), ("ROLLBACK", "before", SHORT), ("ROLLBACK", "before", SHORT)]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)  # type: ignore[arg-type]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)  # type: ignore[arg-type]
    store.write(group)  # type: ignore[arg-type]
    assert written(store) == (count, 1)


def test_a_commit_without_memory_that_was_rolled_back_may_be_tried_again(store: Store, flaky: Flaky) -> None:
    failed = duckdb.TransactionException("Failed to commit: failed to pin block of size 64.0 KiB")
    flaky.fail = [("COMMIT", "before", failed)]
    with pytest.raises(duckdb.OutOfMemoryException, match="failed to pin"):
        store.write(a_group())  # type: ignore[arg-type]
    flaky.fail = [("COMMIT", "before", duckdb.TransactionException("a conflict"))]
    with pytest.raises(duckdb.TransactionException, match="conflict"):
        store.write(a_group())  # type: ignore[arg-type]


def test_guests_stand_back_after_a_shortage_and_not_otherwise(store: Store, flaky: Flaky) -> None:
    class Readers:
        are_there = True
        stood_back = 0

        @contextlib.contextmanager
        def standing_back(self) -> Iterator[None]:
            self.stood_back += 1
            yield

    readers = store.guests = Readers()
    group = a_group()
    flaky.fail = [("COMMIT", "before", SHORT)]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)  # type: ignore[arg-type]
    assert readers.stood_back == 0
    store.write(group)  # type: ignore[arg-type]
    assert readers.stood_back == 1
    readers.are_there = False
    store.write({})
    readers.are_there = True
    store.write({})
    assert readers.stood_back == 1
