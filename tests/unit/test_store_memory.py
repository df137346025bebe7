"""Commits that run out of memory: told apart whether they are done, never done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import duckdb
import pytest

from flaky_store import Flaky, a_group, flaky_connection, written
from rankmem_aggregator.store.store import Store

pytestmark = pytest.mark.slow

SHORT = duckdb.OutOfMemoryException("failed to allocate data of size 2.0 KiB")


@pytest.fixture
def flaky(store: Store) -> Flaky:
    return flaky_connection(store)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_raises_is_looked_at_before_it_is_tried_again(
    store: Store, flaky: Flaky, when: str
) -> None:
    group = a_group()
    count = group["memory_event"].num_rows
    flaky.fail = [("COMMIT", when, SHORT)]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)
    assert written(store) == ((count, 1) if when == "after" else (0, 0))
    store.write(group)
    assert written(store) == (count, 1)


def test_a_rollback_without_memory_is_made_up_for_before_the_next_use(store: Store, flaky: Flaky) -> None:
    group = a_group()
    count = group["memory_event"].num_rows
    flaky.fail = [("COMMIT", "before", SHORT), ("ROLLBACK", "before", SHORT), ("ROLLBACK", "before", SHORT)]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)
    store.write(group)
    assert written(store) == (count, 1)


def test_a_commit_without_memory_that_was_rolled_back_may_be_tried_again(store: Store, flaky: Flaky) -> None:
    failed = duckdb.TransactionException("Failed to commit: failed to pin block of size 64.0 KiB")
    flaky.fail = [("COMMIT", "before", failed)]
    with pytest.raises(duckdb.OutOfMemoryException, match="failed to pin"):
        store.write(a_group())
    flaky.fail = [("COMMIT", "before", duckdb.TransactionException("a conflict"))]
    with pytest.raises(duckdb.TransactionException, match="conflict"):
        store.write(a_group())


def test_readers_are_paused_after_a_shortage_and_not_otherwise(store: Store, flaky: Flaky) -> None:
    class Readers:
        running = 1
        pauses = 0

        @contextlib.contextmanager
        def paused(self) -> Iterator[None]:
            self.pauses += 1
            yield

    readers = store.instance.readers = Readers()
    group = a_group()
    flaky.fail = [("COMMIT", "before", SHORT)]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(group)
    assert readers.pauses == 0
    store.write(group)
    assert readers.pauses == 1
    readers.running = 0
    store.write({})
    readers.running = 1
    store.write({})
    assert readers.pauses == 1
