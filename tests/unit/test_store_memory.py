"""Commits that run out of memory: told apart whether they are done, never done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import duckdb
import pytest

from flaky_store import Flaky, a_group, flaky_connection, written
from rankmem_aggregator.store.store import Store

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
        store.write(group)
    assert readers.stood_back == 0
    store.write(group)
    assert readers.stood_back == 1
    readers.are_there = False
    store.write({})
    readers.are_there = True
    store.write({})
    assert readers.stood_back == 1
