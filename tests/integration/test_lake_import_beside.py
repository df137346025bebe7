"""A session is imported into a lake while an aggregator of the lake receives it: each record counts once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ingest_client import IngestClient
from lake_pieces import catalog_of
from lake_serving import SESSION, Log, check_rows, recorded_logs, send, serving
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.lake import import_ as importing
from rankmem_aggregator.lake.delta import DeltaLog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.layout import TABLES
from rankmem_aggregator.server.aggregator import open as open_aggregator
from rankmem_protos.errors import Code, RankmemError
from waiting import until

HOUR_S = 3600.0


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Log]:
    return recorded_logs(tmp_path_factory.mktemp("logs"), ranks=2, attempts=1)


def begun(log: Log) -> Log:
    """The first batches of a log."""
    return Log(log.opening, log.batches[: len(log.batches) // 2])


def database_with(path: Path, logs: list[Log]) -> Path:
    """A database that has received these."""
    with open_aggregator(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    return path


@pytest.fixture(scope="module")
def first_halves(tmp_path_factory: pytest.TempPathFactory, logs: list[Log]) -> Path:
    return database_with(tmp_path_factory.mktemp("half") / "job.duckdb", [begun(log) for log in logs])


def check_logs_of_tables(lake: Path) -> None:
    """What other engines see is what counts."""
    counting = {file.path for file in catalog_of(lake).of_session(SESSION)}
    logged = {
        file.path for t in TABLES.values() for file in DeltaLog(LakeFiles(str(lake)), t).active(SESSION)
    }
    assert logged == counting


def beside(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Does this right before an import's commit."""
    original = importing.commit_session

    def commit(*given: Any, **named: Any) -> None:
        act()
        original(*given, **named)

    monkeypatch.setattr(importing, "commit_session", commit)


def test_what_the_import_commits_first_the_aggregator_drops_and_receives_the_rest(
    tmp_path: Path, logs: list[Log], first_halves: Path
) -> None:
    lake = tmp_path / "lake"
    with serving(lake, lake_interval_s=HOUR_S) as aggregator, ExitStack() as stack:
        clients = [stack.enter_context(IngestClient(aggregator.address, receipts=True)) for _ in logs]
        for client, log in zip(clients, logs, strict=True):
            client.send(open_spool=log.opening)
            assert client.reply().spool_state.last_sequence == -1
            client.send(batch=log.batches[0])
        until("they are received", lambda: aggregator.store.disk.log_bytes() > 0)
        assert import_database(first_halves, str(lake)).sessions == {SESSION: "written"}
        for client, log in zip(clients, logs, strict=True):
            for batch in log.batches[1:]:
                client.send(batch=batch)
            assert {client.reply().refusal.code for _ in log.batches} == {"conflict"}
            client.send(open_spool=log.opening)
            stored = client.reply().spool_state.last_sequence
            assert stored == begun(log).batches[-1].sequence_last
            rest = [batch for batch in log.batches if batch.sequence_first > stored]
            for batch in rest:
                client.send(batch=batch)
            client.acks(len(rest))
    check_rows(f"lake:{lake}", logs)
    check_logs_of_tables(lake)
    assert import_database(first_halves, str(lake)).sessions == {SESSION: "already there"}


def test_an_import_is_refused_when_the_aggregator_commits_first(
    tmp_path: Path, logs: list[Log], first_halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator:
        beside(monkeypatch, lambda: send(aggregator.address, logs[:1]))
        for _ in range(2):
            with pytest.raises(RankmemError, match=f"session {SESSION} from serve:.*") as refused:
                import_database(first_halves, str(lake))
            assert refused.value.code is Code.CONFLICT
            monkeypatch.undo()
        send(aggregator.address, logs[1:])
    check_rows(f"lake:{lake}", logs)
    check_logs_of_tables(lake)


def test_a_database_that_has_grown_is_refused_when_an_aggregator_has_gone_on(
    tmp_path: Path, logs: list[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, database = tmp_path / "lake", database_with(tmp_path / "job.duckdb", [begun(log) for log in logs])
    import_database(database, str(lake))
    database_with(database, [Log(logs[0].opening, logs[0].batches[len(begun(logs[0]).batches) :])])
    with serving(lake) as aggregator:

        def goes_on() -> None:
            rest = [Log(log.opening, log.batches[len(begun(log).batches) :]) for log in logs]
            send(aggregator.address, rest)

        beside(monkeypatch, goes_on)
        with pytest.raises(RankmemError, match=f"session {SESSION} from serve:.*"):
            import_database(database, str(lake))
    check_rows(f"lake:{lake}", logs)
    check_logs_of_tables(lake)


def test_a_rank_that_the_database_lacks_is_stored_beside_its_import(
    tmp_path: Path, logs: list[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, database = tmp_path / "lake", database_with(tmp_path / "job.duckdb", logs[:1])
    with ExitStack() as stack:
        aggregator = stack.enter_context(serving(lake, lake_interval_s=HOUR_S))
        client = stack.enter_context(IngestClient(aggregator.address, receipts=True))
        client.send(open_spool=logs[1].opening)
        client.reply()
        client.send(batch=logs[1].batches[0])
        until("it is received", lambda: aggregator.store.disk.log_bytes() > 0)
        import_database(database, str(lake))
        for batch in logs[1].batches[1:]:
            client.send(batch=batch)
        client.acks(len(logs[1].batches))
    check_rows(f"lake:{lake}", logs)


@pytest.mark.long
def test_of_two_databases_with_one_session_that_are_imported_at_once_one_is_refused(
    tmp_path: Path, logs: list[Log], first_halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, whole = tmp_path / "lake", database_with(tmp_path / "whole.duckdb", logs)
    original = importing.commit_session
    beside(monkeypatch, lambda: (monkeypatch.undo(), import_database(whole, str(lake))))
    with pytest.raises(RankmemError, match=f"session {SESSION} from import:.*"):
        import_database(first_halves, str(lake))
    assert importing.commit_session is original
    check_rows(f"lake:{lake}", logs)
    check_logs_of_tables(lake)


def test_queries_count_once_what_an_import_brought_and_the_aggregator_has_received(
    tmp_path: Path, logs: list[Log], first_halves: Path
) -> None:
    lake, log = tmp_path / "lake", logs[0]
    statement = "SELECT count(*) AS n, count(DISTINCT seq) AS seqs FROM memory_event WHERE rank = $rank"
    given = {"rank": log.opening.rank}
    with connect(first_halves) as file:
        (imported,) = file.sql(statement, given).to_pylist()
    with ExitStack() as stack:
        aggregator = stack.enter_context(serving(lake, lake_interval_s=HOUR_S))
        client = stack.enter_context(IngestClient(aggregator.address, receipts=True))
        client.send(open_spool=log.opening)
        client.reply()
        client.send(batch=log.batches[0])
        until("it is received", lambda: aggregator.store.disk.log_bytes() > 0)
        queries = stack.enter_context(connect(aggregator.address))
        import_database(first_halves, str(lake))

        def has_all() -> bool:
            (row,) = queries.sql(statement, given).to_pylist()
            assert row["n"] == row["seqs"] <= imported["n"]
            return bool(row == imported)

        until("the import is seen", has_all)
