"""Deleted sessions are gone whole, the others are as if those had never been; ingest goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from ingest_client import TIMEOUT_S, IngestClient
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.retention import compact
from rankmem_aggregator.retention import delete as prune
from rankmem_aggregator.retention import limits as retention
from rankmem_aggregator.retention.compact import prune_file
from rankmem_aggregator.retention.limits import Limits
from rankmem_aggregator.retention.worker import RetentionWorker
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.store import private_files, schema
from rankmem_aggregator.store.store import Store, open_store
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import TABLES
from sample_batches import RankSource

OLD, MIDDLE, NEW = "01AAAAAAAAAA", "01BBBBBBBBBB", "01CCCCCCCCCC"
COUNTED = ("pruned_spool", "ingest_progress", "rankmem_meta", "stack_hash", "stack_frame", "summary_progress")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are over when their last batch is stored; slices are small."""
    monkeypatch.setattr(retention, "RESTART_S", -1.0)
    monkeypatch.setattr(prune, "SLICE_ROWS", 700)


def config_of(path: Path, **options: object) -> AggregatorConfig:
    return AggregatorConfig.from_environment({}, database_path=path, listen="127.0.0.1:0", **options)


def source_of(session_id: str, rank: int = 0, first_stack: int = 0) -> RankSource:
    source = RankSource(session_id=session_id, rank=rank, num_stacks=400)
    source.stack_hashes = source.stack_hashes + first_stack
    return source


def fill(
    path: Path, session_ids: list[str], *, batches: int = 3, events: int = 500, final: bool = True
) -> None:
    """Rows of the sessions as they interleave, two ranks each; every session has stacks of its own, too."""
    sources = [
        source_of(session_id, rank, first_stack=rank * (1 + [OLD, MIDDLE, NEW].index(session_id)))
        for session_id in session_ids
        for rank in range(2)
    ]
    with server.open(config_of(path)) as aggregator, IngestClient(aggregator.address) as client:
        for source in sources:
            client.open(source)
        for number in range(batches):
            for source in sources:
                message = source.batch(events, final=final and number == batches - 1)
                message.tables.append(session_row(source))
                client.send(batch=message)
            client.acks(len(sources))


def session_row(source: RankSource) -> TableRows:
    row = {"session_id": source.session_id, "source": "live"}
    rows = pa.Table.from_pylist([row], schema=TABLES["session"].arrow_schema())
    return TableRows(table="session", arrow_ipc=encode_rows(rows))


def contents(path: Path, session_ids: list[str]) -> dict[str, list[tuple[object, ...]]]:
    """All rows by table, stacks by their hashes: what two databases have in common if they say the same."""
    found: dict[str, list[tuple[object, ...]]] = {}
    with duckdb.connect(path, read_only=True) as connection:
        for table in schema.ALL_TABLES.values():
            if table.name in COUNTED or "session_id" not in table.column_names():
                continue
            columns = [
                f"(SELECT stack_hash FROM stack_hash AS s WHERE s.stack_id = t.{name})"
                if name.endswith("stack_id")
                else name
                for name in table.column_names()
            ]
            rows = connection.execute(
                f"SELECT {', '.join(columns)} FROM {table.name} AS t WHERE session_id IN "
                f"(SELECT unnest($ids)) ORDER BY ALL",
                {"ids": session_ids},
            ).fetchall()
            found[table.name] = rows
        found["stacks"] = connection.execute(
            "SELECT stack_hash, ordering, file_path, line_number, function FROM stack_hash "
            "INNER JOIN stack_frame USING (stack_id) ORDER BY ALL"
        ).fetchall()
    return found


def all_sessions(path: Path) -> dict[str, set[str]]:
    """By table, the sessions with rows in it."""
    with duckdb.connect(path, read_only=True) as connection:
        return {
            table.name: {
                str(name)
                for (name,) in connection.execute(f"SELECT DISTINCT session_id FROM {table.name}").fetchall()
            }
            for table in schema.ALL_TABLES.values()
            if "session_id" in table.column_names() and table.name != "pruned_spool"
        }


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "r.duckdb"
    fill(path, [OLD, MIDDLE, NEW])
    return path


def test_a_deleted_session_leaves_the_others_as_if_it_had_never_been(filled: Path, tmp_path: Path) -> None:
    without = tmp_path / "without.duckdb"
    fill(without, [MIDDLE, NEW])
    done = prune_file(filled, Limits(), [OLD])
    assert (done.session_ids, done.num_kept) == ((OLD,), 2)
    assert all(found <= {MIDDLE, NEW} for found in all_sessions(filled).values())
    assert contents(filled, [OLD, MIDDLE, NEW]) == contents(without, [MIDDLE, NEW])
    assert contents(filled, [NEW])["memory_event"]
    assert done.bytes_after <= done.bytes_before


def test_a_kill_between_any_two_steps_leaves_a_session_known_whole_or_not_at_all(
    filled: Path, tmp_path: Path
) -> None:
    without = tmp_path / "without.duckdb"
    fill(without, [OLD, NEW])
    steps = 0
    for life in range(60):
        store = open_store(config_of(filled))
        worker = RetentionWorker(store, Limits())
        if steps == 0:
            worker.begin(MIDDLE)
        going = all(worker.advance() for _ in range(1 + life % 2))
        store.instance.connection.close()  # neither a checkpoint nor a word
        private_files.release()  # this process lives on
        steps += 1
        if not going:
            break
    assert 10 < steps < 60, "several slices, and an end"
    assert contents(filled, [OLD, MIDDLE, NEW]) == contents(without, [OLD, NEW])
    with duckdb.connect(filled, read_only=True) as connection:
        left = connection.execute("SELECT count(*) FROM pruned_spool WHERE has_rows").fetchone()
    assert left == (0,)


def test_a_late_shipper_is_done_with_a_deleted_log_and_brings_nothing_back(filled: Path) -> None:
    prune_file(filled, Limits(), [OLD])
    oracle = source_of(OLD)
    for number in range(3):
        oracle.batch(500, final=number == 2)
    with server.open(config_of(filled)) as aggregator, IngestClient(aggregator.address) as client:
        assert client.open(source_of(OLD)) == oracle.next_sequence - 1
        client._requests.put(source_of(OLD, rank=7).open_spool())
        assert client.reply().refusal.code == "not_found"
    assert OLD not in all_sessions(filled)["memory_event"]


def test_a_log_of_a_deleted_session_that_had_no_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.duckdb"
    fill(path, [OLD], final=False)
    with pytest.raises(RankmemError, match="may still be running") as running:
        prune_file(path, Limits(), [OLD])
    assert running.value.code is Code.CONFLICT
    assert prune_file(path, Limits(sessions=1, days=1e-9)).session_ids == ()
    monkeypatch.setattr(retention, "SILENT_S", -1.0)
    assert prune_file(path, Limits(), [OLD]).session_ids == (OLD,)
    with server.open(config_of(path)) as aggregator, IngestClient(aggregator.address) as client:
        client._requests.put(source_of(OLD).open_spool())
        refusal = client.reply().refusal
        assert (refusal.code, refusal.fatal) == ("not_found", False)
        assert client.open(source_of(NEW)) == -1


def test_an_aggregator_keeps_its_limit_while_it_ingests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_aggregator.retention.worker.LOOK_EVERY_S", 0.0)
    path = tmp_path / "live.duckdb"
    runs = source_of(NEW)
    with (
        server.open(config_of(path, keep_sessions=2)) as aggregator,
        IngestClient(aggregator.address) as client,
    ):
        client.open(runs)
        for session_id in (OLD, MIDDLE):
            ended = source_of(session_id)
            client.open(ended)
            client.send(batch=ended.batch(2000, final=True))
            client.acks(1)
            client.send(batch=runs.batch(300))
            client.acks(1)
        for _ in range(30):
            client.send(batch=runs.batch(300))
            client.acks(1)
        assert aggregator._writer.num_pruned == 1
    found = all_sessions(path)
    assert found["memory_event"] == {MIDDLE, NEW}
    assert found["ingest_progress"] == {MIDDLE, NEW}
    fresh = source_of(NEW)
    expected = sum(fresh.rows(300)["memory_event"].num_rows for _ in range(32))
    assert len(contents(path, [NEW])["memory_event"]) == expected


def test_an_idle_aggregator_looks_too(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankmem_aggregator.server.watch.INTERVAL_S", 0.01)
    with server.open(config_of(filled, keep_sessions=1)) as aggregator:
        finished = aggregator._watch._stop.wait  # woken by nobody: a bounded wait, looked at again
        for _ in range(int(TIMEOUT_S / 0.05)):
            if aggregator._writer.num_pruned == 2 and not aggregator._writer._retention._pruner.is_busy:
                break
            finished(0.05)
    assert all_sessions(filled)["memory_event"] == {NEW}


@pytest.mark.long
def test_blocks_of_deleted_sessions_are_used_again(tmp_path: Path) -> None:
    path = tmp_path / "reuse.duckdb"
    fill(path, [OLD, MIDDLE], batches=12)
    prune_file(path, Limits(), [OLD], pack=False)
    full_bytes = path.stat().st_size
    fill(path, [NEW], batches=12)
    assert path.stat().st_size <= full_bytes + 4 * schema.BLOCK_BYTES * len(schema.ALL_TABLES)
    store = open_store(config_of(path))
    used_bytes = store.used_bytes()
    store.close()
    packed = prune_file(path, Limits())
    assert packed.session_ids == ()
    assert packed.bytes_after <= used_bytes * compact.COPY_SLACK + 16 * schema.BLOCK_BYTES


@pytest.fixture
def opened(filled: Path) -> Iterator[Store]:
    store = open_store(config_of(filled))
    yield store
    store.close()


def test_a_limit_in_bytes_deletes_the_oldest_until_the_used_part_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "SLICE_ROWS", 1_000_000)
    path = tmp_path / "large.duckdb"
    for session_id in (OLD, MIDDLE, NEW):
        fill(path, [session_id], batches=1, events=20_000)
    store = open_store(config_of(path))
    store.checkpoint(0)
    gone: list[str] = []
    limit = store.used_bytes() - 1
    worker = RetentionWorker(store, Limits(size_bytes=limit), deleted=gone.append)
    while worker.advance():
        pass
    used_bytes = store.used_bytes()
    store.close()
    assert gone == [OLD]
    assert used_bytes <= limit


def test_readers_see_all_of_a_session_until_they_end(opened: Store) -> None:
    with opened.cursor() as reader:
        reader.execute("BEGIN TRANSACTION READ ONLY")
        query = "SELECT count(*) FROM memory_event WHERE session_id = ?"
        before = reader.execute(query, [OLD]).fetchall()
        worker = RetentionWorker(opened, Limits())
        worker.begin(OLD)
        while worker.advance():
            pass
        assert reader.execute(query, [OLD]).fetchall() == before
    with opened.cursor() as later:
        assert later.execute(query, [OLD]).fetchall() == [(0,)]


def test_a_held_file_is_left_alone(filled: Path) -> None:
    with server.open(config_of(filled)), pytest.raises(RankmemError) as held:
        prune_file(filled, Limits(sessions=1))
    assert held.value.code is Code.CONFLICT
    assert all_sessions(filled)["memory_event"] == {OLD, MIDDLE, NEW}
