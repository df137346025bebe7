"""An instance that DuckDB has invalidated is reopened: what was committed is there, nothing twice."""

from __future__ import annotations

import duckdb
import pytest

from file_size_limit import no_file_grows
from flaky_store import a_group, flaky_connection, written
from rankmem_aggregator.store.recovery import REOPENS_MAX, InvalidatedError
from rankmem_aggregator.store.store import Store
from rankmem_protos.errors import Code, RankmemError

pytestmark = pytest.mark.slow

SHORT = duckdb.OutOfMemoryException("failed to allocate data of size 2.0 KiB")
INVALIDATED = duckdb.FatalException("Failed to rollback transaction. Cannot continue operation.")


def broken(store: Store) -> None:
    """A checkpoint cannot write: DuckDB itself invalidates the database."""
    with no_file_grows(), pytest.raises(duckdb.IOException, match="invalidated"):
        store.instance.connection.execute("CHECKPOINT")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_on_which_the_database_is_invalidated_is_stored_once(store: Store, when: str) -> None:
    group = a_group()
    count = group["memory_event"].num_rows
    flaky_connection(store).fail = [("COMMIT", when, INVALIDATED)]
    with pytest.raises(InvalidatedError, match=r"reopened.*Cannot continue"):
        store.write(group)
    assert written(store) == ((count, 1) if when == "after" else (0, 0))
    store.write(group)
    assert written(store) == (count, 1)


def test_a_database_that_duckdb_invalidates_is_reopened_with_all_that_was_committed(store: Store) -> None:
    group = a_group()
    count = group["memory_event"].num_rows
    store.write(group)
    broken(store)
    with pytest.raises(InvalidatedError):
        store.read("SELECT count(*) FROM session")
    assert written(store) == (count, 1)
    assert store.checkpoint(0)


def test_an_instance_found_invalidated_by_a_reader_is_reopened_by_the_writer(store: Store) -> None:
    store.write(a_group())
    broken(store)
    store.instance.is_invalidated = True
    store.instance.reopen_if_invalidated()
    assert not store.instance.is_invalidated
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM ingest_progress").fetchall() == [(1,)]


def test_reopening_without_memory_waits_and_the_writer_lives(store: Store) -> None:
    flaky = flaky_connection(store)
    flaky.fail = [("COMMIT", "before", SHORT), ("ROLLBACK", "before", SHORT), ("ROLLBACK", "before", SHORT)]
    with pytest.raises(duckdb.OutOfMemoryException):
        store.write(a_group())
    store.instance.is_invalidated = True
    store.instance.reopen_if_invalidated()
    assert store.instance.is_invalidated
    store.instance.reopen_if_invalidated()
    assert not store.instance.is_invalidated


def test_a_cursor_that_lacks_memory_is_over_its_memory_limit_and_invalidates_nothing(store: Store) -> None:
    class Short:
        def cursor(self) -> None:
            raise SHORT

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    real = store.instance.connection
    store.instance.connection = Short()  # type: ignore[assignment]
    assert store.instance.is_over_memory_limit()
    assert not store.instance.is_invalidated


def test_reopening_what_is_whole_changes_nothing(store: Store) -> None:
    connection = store.instance.connection
    store.instance.is_invalidated = True
    store.instance.reopen_if_invalidated()
    assert not store.instance.is_invalidated
    assert store.instance.connection is connection


def test_a_cursor_is_refused_while_the_instance_cannot_be_used(store: Store) -> None:
    store.instance.connection.close()
    with pytest.raises(RankmemError, match="being reopened") as caught:
        store.cursor()
    assert caught.value.code is Code.UNAVAILABLE
    assert store.instance.is_invalidated


def test_an_instance_invalidated_again_and_again_is_left_so(store: Store) -> None:
    for _ in range(REOPENS_MAX):
        flaky_connection(store).fail = [("COMMIT", "before", INVALIDATED)]
        with pytest.raises(InvalidatedError):
            store.write(a_group())
    flaky_connection(store).fail = [("COMMIT", "before", INVALIDATED)]
    with pytest.raises(duckdb.FatalException):
        store.write(a_group())
