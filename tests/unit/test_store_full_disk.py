"""A disk that is full only when it is written to: nothing acknowledged is lost, nothing is stored twice, and
it goes on when there is room."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from file_size_limit import no_file_grows
from flaky_store import a_group, flaky_connection, written
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import Spool
from rankmem_aggregator.ingest.sequence import Progress
from rankmem_aggregator.ingest.stored_state import progress_rows
from rankmem_aggregator.retention.limits import Limits
from rankmem_aggregator.retention.worker import RetentionWorker
from rankmem_aggregator.store.disk import Disk, DiskLowError
from rankmem_aggregator.store.recovery import REOPENS_MAX, TRANSIENT, InvalidatedError
from rankmem_aggregator.store.schema import INGEST_PROGRESS
from rankmem_aggregator.store.store import Store, open_store
from rankmem_protos.errors import RankmemError
from sample_batches import RankSource

pytestmark = pytest.mark.slow

SEED = 2029
FULL = duckdb.TransactionException(
    'Failed to commit: Could not write file "mem.duckdb.wal": No space left on device'
)


@contextlib.contextmanager
def fills_after_the_look(store: Store, beyond_bytes: Callable[[], int]) -> Iterator[None]:
    """Other programs take the room between the store's look at it and its commit."""
    look, full = store.disk.check_room, contextlib.ExitStack()

    def looked(size_bytes: int = 0) -> None:
        look(size_bytes)
        full.enter_context(no_file_grows(beyond_bytes()))

    with full:
        store.disk.check_room = looked  # type: ignore[method-assign]
        try:
            yield
        finally:
            del store.disk.check_room  # type: ignore[method-assign]


def next_group(source: RankSource, num_rows: int) -> dict[str, pa.Table]:
    """The rank's next rows of three tables, and how far its spool is with them."""
    rows = source.rows(num_rows)
    spool = Spool(spool_id=source.spool_id, session_id=source.session_id, attempt=0, rank=0)
    progress = Progress(spool=spool, last_sequence=source.next_sequence - 1, final=False)
    return {name: rows[name] for name in rows if name in ("memory_event", "memory_bucket")} | {
        INGEST_PROGRESS.name: progress_rows([progress])
    }


def test_a_commit_that_meets_a_full_disk_is_tried_again_and_stored_once(store: Store) -> None:
    group = a_group()
    count = group["memory_event"].num_rows
    with fills_after_the_look(store, lambda: store.disk.log_bytes() + 100), pytest.raises(TRANSIENT):
        store.write(group)
    store.write(group)
    assert written(store) == (count, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_doubtful_commit_on_a_full_disk_is_looked_at_before_it_is_tried_again(
    store: Store, when: str
) -> None:
    group = a_group()
    flaky_connection(store).fail = [("COMMIT", when, FULL)]
    with pytest.raises(duckdb.IOException, match="No space left"):
        store.write(group)
    store.write(group)
    assert written(store) == (group["memory_event"].num_rows, 1)


def disk_fills(path: Path, num_fills: int) -> tuple[int, int]:
    """Commits of any size on a disk that is full at any byte; how many failed, and how often the files
    themselves were looked at."""
    chance = random.Random(SEED)
    config = AggregatorConfig(database_path=path, checkpoint_threshold_bytes=300_000, row_group_rows=2048)
    source, store = RankSource(rank=0), open_store(config)
    events = failed = looks = 0
    for _ in range(num_fills):
        group = next_group(source, chance.choice((50, 400, 3000, 9000)))
        room = chance.choice((0, 500, 5_000, 50_000, 300_000))
        base = chance.choice((store.disk.log_bytes, store.disk.file_bytes, lambda: 0))
        for beyond in (base() + chance.randrange(1, room + 2), chance.randrange(1, 1 << 20)):
            with fills_after_the_look(store, lambda: beyond):  # noqa: B023  used within the turn
                try:
                    store.write(group)
                    break
                except TRANSIENT:
                    failed += 1
        else:
            if chance.random() < 0.2:
                looks += 1
                assert on_disk(path) in (events, events + group["memory_event"].num_rows)
            store.write(group)
        events += group["memory_event"].num_rows
        if chance.random() < 0.1:
            store.close()
            store = open_store(config)
    assert written(store) == (events, 1)
    rows = store.read("SELECT count(DISTINCT seq) AS n FROM memory_event").to_pylist()
    assert rows == [{"n": events}]
    store.close()
    return failed, looks


def on_disk(path: Path) -> int:
    """Events in the database as a power failure now would leave it."""
    copy = path.with_name("copy.duckdb")
    shutil.copy(path, copy)
    log = path.with_name(path.name + ".wal")
    if log.exists():
        shutil.copy(log, copy.with_name(copy.name + ".wal"))
    with duckdb.connect(copy) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM memory_event").fetchall()
    copy.unlink()
    copy.with_name(copy.name + ".wal").unlink(missing_ok=True)
    return int(count)


def test_a_disk_that_fills_at_any_byte_of_a_commit_costs_nothing(tmp_path: Path) -> None:
    failed, looks = disk_fills(tmp_path / "fills.duckdb", 40)
    assert failed > 20
    assert looks > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_three_hundred_fills_cost_nothing(tmp_path: Path) -> None:
    failed, looks = disk_fills(tmp_path / "fills.duckdb", 300)
    assert failed > 150
    assert looks > 15


def test_an_instance_that_cannot_be_opened_on_a_full_disk_is_opened_when_there_is_room(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(a_group())
    count = written(store)
    with no_file_grows(), pytest.raises(duckdb.IOException, match="invalidated"):
        store.instance.connection.execute("CHECKPOINT")
    with monkeypatch.context() as full:
        full.setattr("rankmem_aggregator.store.recovery.open_instance", cannot_open)
        for _ in range(REOPENS_MAX + 3):
            with pytest.raises((InvalidatedError, DiskLowError)):
                store.read("SELECT count(*) FROM session")
            store.instance.reopen_if_invalidated()
            with pytest.raises(RankmemError, match="being reopened"):
                store.cursor()
        assert store.instance.is_invalidated
    store.instance.reopen_if_invalidated()
    assert not store.instance.is_invalidated
    assert written(store) == count
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM ingest_progress").fetchall() == [(1,)]


def cannot_open(config: AggregatorConfig) -> None:
    raise duckdb.IOException(f'Could not write file "{config.database_path}.wal": No space left on device')


def test_checkpoints_that_meet_a_full_disk_again_and_again_do_not_end_it(store: Store) -> None:
    store.write(a_group())
    for _ in range(REOPENS_MAX + 2):
        with no_file_grows():
            assert not store.checkpoint(0)
    assert store.checkpoint(0)
    assert written(store)[1] == 1


def test_a_quota_that_no_look_shows_is_met_again_and_again_and_does_not_end_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = a_group()
    monkeypatch.setattr(Disk, "check_room", lambda *_: None)
    with no_file_grows():
        for _ in range(REOPENS_MAX + 3):
            with pytest.raises(TRANSIENT):
                store.write(group)
            store.instance.is_invalidated = True
            with contextlib.suppress(*TRANSIENT):
                store.checkpoint(0)
            store.disk.has_failed = False
            with contextlib.suppress(duckdb.Error):
                store.instance.connection.execute("CHECKPOINT")  # invalidates what is open
    with pytest.raises(InvalidatedError):  # reopening writes nothing, so it had succeeded before that
        store.write(group)
    store.write(group)
    assert written(store) == (group["memory_event"].num_rows, 1)


def test_deleting_goes_on_after_a_full_disk(store: Store) -> None:
    store.write(a_group())
    worker = RetentionWorker(store, Limits(days=0, size_bytes=0, sessions=0))
    worker.begin("0SESSION")
    flaky_connection(store).fail = [("COMMIT", "before", FULL)]
    assert not worker.advance()
    assert worker.is_due


def test_what_could_not_be_synced_is_written_again_before_anything_is_acknowledged(store: Store) -> None:
    flaky_connection(store).fail = [("COMMIT", "after", duckdb.FatalException("FATAL Error: fsync failed!"))]
    with pytest.raises(InvalidatedError):
        store.write(a_group())
    store.instance.connection.execute("CREATE TABLE a_user_s (a INTEGER)")  # something in the log
    assert store.disk.log_bytes() > 0
    flaky_connection(store).fail = [("CHECKPOINT", "before", duckdb.TransactionException("active"))]
    with pytest.raises(duckdb.IOException, match="written again first"):
        store.write(a_group())
    store.write(a_group())
    assert written(store)[1] == 1
    assert store.disk.log_bytes() == 0


def test_a_limit_on_the_size_of_files_is_seen_before_a_commit(store: Store) -> None:
    with no_file_grows(), pytest.raises(DiskLowError, match=r"may have 1 bytes \(ulimit -f\)"):
        store.write(a_group())
    store.write(a_group())


def test_after_a_failure_room_is_reserved_before_a_commit_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quota(fd: int, begin: int, length: int) -> None:
        raise OSError(122, os.strerror(122))

    disk = Disk(tmp_path / "mem.duckdb")
    monkeypatch.setattr(os, "posix_fallocate", quota)
    disk.check_room(1)
    disk.has_failed = True
    with pytest.raises(DiskLowError, match=r"cannot be reserved.*quota"):
        disk.check_room(1)
    monkeypatch.undo()
    disk.check_room(1)
    assert list(tmp_path.iterdir()) == []
