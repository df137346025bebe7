"""A running job written into a lake: the same answers as from a database that received the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from failing_lake import EVENTS, FailingLake, many_events
from ingest_client import IngestClient
from lake_checks import differences, quick_differences, table_differences
from lake_serving import (
    SESSION,
    Log,
    database_of,
    deliver,
    make_spool,
    one_time,
    recorded_logs,
    send,
    serving,
)
from rankmem_aggregator import connect
from rankmem_aggregator.lake import batch_files, catalog, commits, served
from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.moves import add_and_move
from rankmem_aggregator.lake.served import TailInstance
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.server.aggregator import Aggregator
from rankmem_protos import collector_pb2 as pb
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import pace, send_buffer
from rankmem_ship.config import ShipConfig
from rankmem_ship.shipper import Shipper
from sample_batches import RankSource
from two_sessions import NEW, OLD, two_sessions
from waiting import until

HOUR_S = 3600.0


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Log]:
    return recorded_logs(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def clock() -> Iterator[None]:
    with one_time():
        yield


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, logs: list[Log], clock: None) -> Path:
    return database_of(tmp_path_factory.mktemp("database"), logs)


def different(database: Path, lake: Path | str) -> list[str]:
    """The tables in which the two differ."""
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        return table_differences(file, queries)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, logs: list[Log], clock: None) -> Path:
    """A lake that was served with the same batches."""
    path = tmp_path_factory.mktemp("served") / "lake"
    with serving(path) as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    return path


def test_a_lake_that_was_served_answers_as_the_database(database: Path, lake: Path) -> None:
    assert check_lake(str(lake)).faults == ()
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        assert quick_differences(file, queries, SESSION) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_everything_that_can_be_asked_of_it_has_the_same_answer(database: Path, lake: Path) -> None:
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        assert differences(file, queries, [SESSION]) == []


def opened(client: IngestClient, log: Log) -> int:
    """Opens a log's spool; the last position stored."""
    client.send(open_spool=log.opening)
    return client.reply().spool_state.last_sequence


def rows_of(queries: Queries) -> int:
    return int(queries.sql("SELECT count(*) AS n FROM memory_event")["n"][0].as_py())


def not_final(batch: pb.Batch) -> pb.Batch:
    """The same, after which more may come: it is not stored at once."""
    copy = pb.Batch()
    copy.CopyFrom(batch)
    copy.final = False
    return copy


def condition_of(aggregator: Aggregator) -> str:
    """Why it cannot store; empty: it can."""
    with connect(aggregator.address) as queries:
        state = queries.aggregator_state()
        assert state is not None
        return state.not_serving_reason


def test_an_aggregator_answers_from_what_it_has_received_too(
    tmp_path: Path, logs: list[Log], clock: None, database: Path
) -> None:
    half = len(logs) // 2
    with serving(tmp_path / "lake") as others:
        send(others.address, logs[:half])
    with ExitStack() as stack:
        file = stack.enter_context(connect(database))
        aggregator = stack.enter_context(serving(tmp_path / "lake", lake_interval_s=HOUR_S))
        with (
            IngestClient(aggregator.address, receipts=True) as client,
            connect(aggregator.address) as queries,
        ):
            for log in logs[half:]:
                client.send(open_spool=log.opening)
                client.reply()
                for batch in log.batches:
                    client.send(batch=not_final(batch))
            until("all is received", lambda: rows_of(queries) == rows_of(file))
            assert aggregator.counters.batches == 0
            assert queries.peak(SESSION).equals(file.peak(SESSION))
            assert queries.job_peak(SESSION).equals(file.job_peak(SESSION))
            assert queries.ops(SESSION, by="operator").equals(file.ops(SESSION, by="operator"))
    # Closing stores it.
    with connect(f"lake:{tmp_path}/lake") as stored, connect(database) as file:
        assert rows_of(stored) == rows_of(file)


def lists(queries: Queries) -> dict[str, int]:
    """Which view each table's files and received rows are."""
    found = queries.sql("SELECT view_name, view_oid FROM duckdb_views() WHERE schema_name = 'shown_now'")
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def never(*_: object) -> list[str]:
    raise AssertionError("a view is made again")


def test_a_commit_changes_the_lists_of_its_tables_and_no_view(
    tmp_path: Path, logs: list[Log], clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "lake") as aggregator, connect(aggregator.address) as queries:
        assert rows_of(queries) == 0
        before = lists(queries)
        monkeypatch.setattr(TailInstance, "_statements", never)
        send(aggregator.address, logs[:1])
        first = rows_of(queries)
        changed = {name for name, oid in lists(queries).items() if before[name] != oid}
        assert first > 0
        assert {"memory_event", "memory_bucket", "ingest_progress"} <= changed
        assert changed.isdisjoint({"availability", "segment_sample", "oom_event"})
        send(aggregator.address, logs[1:])
        assert rows_of(queries) > first


def test_an_aggregator_answers_from_no_file_that_is_not_what_was_stored(tmp_path: Path) -> None:
    database, lake = two_sessions(tmp_path / "two.duckdb"), tmp_path / "lake"
    import_database(database, str(lake))
    (file,) = [f for f in read_catalog(LakeFiles(str(lake))).of_table("memory_event") if f.session_id == OLD]
    place = lake / file.path
    content = place.read_bytes()
    with serving(lake) as aggregator, connect(aggregator.address) as queries:
        expected = rows_of(queries), queries.job_peak(NEW)
        pq.write_table(pq.read_table(place, partitioning=None).slice(1), place)
        check_refused(queries, tmp_path / "copy.duckdb", f"{place} has .* it is torn, or another file")
        assert queries.job_peak(NEW) == expected[1]  # it needs no file of another
        place.unlink()
        check_refused(queries, tmp_path / "copy.duckdb", f"{place} is missing")
        place.write_bytes(content)
        assert (rows_of(queries), queries.job_peak(NEW)) == expected


def test_a_store_that_fails_amid_an_answer_is_named_and_other_questions_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_database(many_events(tmp_path / "two.duckdb"), str(tmp_path / "lake"))
    store = FailingLake(str(tmp_path / "lake"))
    monkeypatch.setattr(served, "LakeFiles", lambda address: store)
    with serving(tmp_path / "lake") as aggregator, connect(aggregator.address) as queries:
        store.fails = True
        with pytest.raises(
            RankmemError, match=f"{store.root}/memory_event/.* cannot be read: .*no route"
        ) as failed:
            queries.sql("SELECT * FROM memory_event")
        assert failed.value.code is Code.UNAVAILABLE
        with pytest.raises(RankmemError, match="syntax error"):
            queries.sql("SELEC 1")
        assert queries.sessions().num_rows == 2
        store.fails = False
        assert rows_of(queries) == EVENTS


def check_refused(queries: Queries, copy: Path, what: str) -> None:
    """Each question that reads the file is refused in these words."""
    asked: list[Callable[[], object]] = [
        lambda: rows_of(queries),
        lambda: queries.job_peak(OLD),
        lambda: queries.copy_to(copy),
    ]
    for ask in asked:
        with pytest.raises(RankmemError, match=what) as refused:
            ask()
        assert refused.value.code is Code.INVALID
        assert "rankmem lake check" in refused.value.hint


def test_a_statement_under_way_reads_the_state_in_which_it_began(
    tmp_path: Path, logs: list[Log], clock: None
) -> None:
    with serving(tmp_path / "lake") as aggregator, connect(aggregator.address) as queries:
        send(aggregator.address, logs[:1])
        first = rows_of(queries)
        with aggregator.store.cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            assert cursor.execute("SELECT 1 FROM session").fetchone()
            send(aggregator.address, logs[1:])
            assert rows_of(queries) > first
            assert cursor.execute("SELECT count(*) FROM memory_event").fetchone() == (first,)


def test_what_another_aggregator_has_stored_is_dropped_and_sent_again(
    tmp_path: Path, logs: list[Log], clock: None, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake, (first, *others) = tmp_path / "lake", logs
    with serving(lake, lake_interval_s=HOUR_S) as zombie, serving(lake) as quick:
        with IngestClient(zombie.address, receipts=True) as client:
            assert opened(client, first) == -1
            for batch in first.batches[:2]:
                client.send(batch=batch)
            until("they are received", lambda: zombie.store.disk.log_bytes() > 0)
            send(quick.address, logs[:1])
            for batch in first.batches[2:]:
                client.send(batch=batch)
            refusals = [client.reply().refusal for _ in first.batches]
            assert client.num_received == len(first.batches)
            assert {refusal.code for refusal in refusals} == {"conflict"}
            assert zombie.store.disk.log_bytes() == 0
            assert opened(client, first) == first.batches[-1].sequence_last
        for log in others:
            send(zombie.address, [log])
    assert "is stored by another aggregator" in caplog.text
    assert different(database, lake) == []


def test_what_another_has_stored_is_answered_once_after_its_spool_was_opened_again(
    tmp_path: Path, logs: list[Log], clock: None
) -> None:
    lake, first = tmp_path / "lake", logs[0]
    count = f"SELECT count(*) AS n, count(DISTINCT seq) AS d FROM memory_event WHERE session_id = '{SESSION}'"
    with (
        serving(lake, lake_interval_s=HOUR_S) as slow,
        serving(lake) as quick,
        IngestClient(slow.address, receipts=True) as client,
    ):
        opened(client, first)
        for batch in first.batches[:2]:
            client.send(batch=batch)
        until("they are received", lambda: slow.store.disk.log_bytes() > 0)
        send(quick.address, logs[:1])
        with connect(quick.address) as queries:
            ((whole, _),) = (tuple(row.values()) for row in queries.sql(count).to_pylist())
        with IngestClient(slow.address, receipts=True) as again:
            assert opened(again, first) == first.batches[-1].sequence_last
        with connect(slow.address) as queries:

            def is_whole() -> bool:
                (row,) = queries.sql(count).to_pylist()
                assert row["n"] == row["d"]
                return bool(row["n"] == whole)

            until("it has what the other stored", is_whole)


def test_a_commit_of_which_no_answer_came_is_made_once(
    tmp_path: Path, logs: list[Log], clock: None, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def answered_late(*given: Any) -> None:
        add_and_move(*given)
        if not made:
            made.append(given)
            raise RankmemError(Code.EXHAUSTED, "the store did not answer in time")

    monkeypatch.setattr(commits, "add_and_move", answered_late)
    with serving(tmp_path / "lake") as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    assert made
    assert different(database, tmp_path / "lake") == []


def test_while_the_store_is_away_nothing_is_acknowledged_and_the_aggregator_says_so(
    tmp_path: Path, logs: list[Log], clock: None, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    with monkeypatch.context() as patched:

        def away(*given: Any) -> None:
            raise OSError("no route to the store")

        patched.setattr(batch_files, "write_rows", away)
        with serving(lake) as aggregator, IngestClient(aggregator.address) as client:
            opened(client, logs[0])
            client.send(batch=logs[0].batches[0])
            until("it is noticed", lambda: "no route to the store" in condition_of(aggregator))
            assert "no route to the store" in client.reply().busy.reason
            assert aggregator.close(0.5) is False
    with serving(lake) as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    assert different(database, lake) == []


def test_an_aggregator_that_dies_before_the_tables_own_logs_has_stored_all(
    tmp_path: Path, logs: list[Log], clock: None, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits.Commits, "log", lambda self, files: None)
    with serving(tmp_path / "lake") as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    assert not (tmp_path / "lake" / "memory_event" / "_delta_log").exists()
    assert different(database, tmp_path / "lake") == []


def test_one_that_dies_before_its_commit_has_stored_nothing(
    tmp_path: Path, logs: list[Log], clock: None, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    with monkeypatch.context() as patched:

        def dies(*given: Any) -> None:
            raise SystemError("killed")

        patched.setattr(commits.Commits, "commit", dies)
        with serving(lake) as aggregator, IngestClient(aggregator.address) as client:
            opened(client, logs[0])
            client.send(batch=logs[0].batches[0])
            with pytest.raises(RankmemError, match="killed"):
                aggregator.serve()
    assert list(lake.glob("memory_event/*/*/*/*.parquet"))
    with serving(lake) as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    assert different(database, lake) == []


def test_two_starts_with_one_session_become_two_attempts_wherever_they_are_sent(tmp_path: Path) -> None:
    """Both are new when their spools are opened: of their commits the later sees the other."""
    late, quick = RankSource(rank=0), RankSource(rank=0)
    quick.spool_id += "-again"
    batches = [late.batch(20), late.batch(20)]
    with ExitStack() as stack:
        first = stack.enter_context(serving(tmp_path / "lake", lake_interval_s=HOUR_S))
        second = stack.enter_context(serving(tmp_path / "lake"))
        with IngestClient(first.address, receipts=True) as client:
            client.open(late)
            client.send(batch=batches[0])
            until("it is received", lambda: first.store.disk.log_bytes() > 0)
            with IngestClient(second.address) as other:
                other.open(quick)
                other.send(batch=quick.batch(20))
                assert len(other.acks(1)) == 1
            batches[1].final = True
            client.send(batch=batches[1])
            assert {client.reply().refusal.code for _ in batches} == {"conflict"}
            client.send(open_spool=late.open_spool().open_spool)
            assert client.reply().spool_state.attempt == 1
            for batch in batches:
                client.send(batch=batch)
            assert len(client.acks(2)) == 2
    with connect(f"lake:{tmp_path}/lake") as queries:
        rows = queries.sql("SELECT attempt, spool_id FROM spool_start ORDER BY ALL").to_pylist()
        ranks = queries.sql("SELECT attempt, rank FROM rank_info ORDER BY ALL").to_pylist()
    assert [row["spool_id"] for row in rows] == [quick.spool_id, late.spool_id]
    assert ranks == [{"attempt": 0, "rank": 0}, {"attempt": 1, "rank": 0}]


def test_a_shipper_sends_on_what_is_received_and_keeps_what_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, folder = tmp_path / "lake", tmp_path / "spools" / SESSION
    spool = make_spool(folder / "0-0-1", attempt=0, rank=0, calls=300)
    monkeypatch.setattr(pace, "BATCH_RECORDS", 100)
    monkeypatch.setattr(send_buffer, "IN_FLIGHT_BATCHES_MAX", 2)

    def away(*given: Any) -> None:
        raise OSError("no route to the store")

    with monkeypatch.context() as patched:
        patched.setattr(batch_files, "write_rows", away)
        with serving(lake, lake_interval_s=HOUR_S) as aggregator:
            shipper = Shipper(folder, ShipConfig(grace_s=0.0, aggregator=aggregator.address))

            shipper.scan()
            (upload,) = shipper.uploads.values()

            def is_received() -> bool:
                shipper.step()
                shipper.wait()
                return upload.queue.sequence_sent >= spool.next_seq and not upload.queue.num_in_flight

            until("all is received", is_received)
            assert upload.stored == -1
            assert not shipper.is_done
            assert not (spool.path / "checkpoint").exists()
            address = aggregator.address
            assert aggregator.close(0.5) is False
    with serving(lake, listen=address) as aggregator:
        deliver(shipper)
    with connect(f"lake:{lake}") as queries:
        rows = queries.sql("SELECT count(*) AS n, count(DISTINCT seq) AS seqs FROM memory_event").to_pylist()
        assert rows[0]["n"] == rows[0]["seqs"] > 1500
        assert queries.sql("FROM gap").num_rows == 0
        assert queries.sql("SELECT final FROM ingest_progress")["final"].to_pylist() == [True]


@pytest.mark.long
def test_what_many_commits_add_to_lake_progress_is_joined(
    tmp_path: Path, logs: list[Log], clock: None, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (catalog, commits):
        monkeypatch.setattr(module, "PROGRESS_FILES_MAX", 2)
    with serving(tmp_path / "lake") as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    opened = catalog.open_progress(LakeFiles(str(tmp_path / "lake")))
    assert len(opened.file_uris()) <= 3
    assert opened.version() > len(logs)
    assert different(database, tmp_path / "lake") == []
