"""A lake is compacted and pruned while aggregators write it: the same answers, nothing lost or twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from ingest_client import IngestClient
from lake_checks import quick_differences, table_differences
from lake_pieces import catalog_of
from lake_serving import SESSION, STORED_NS, Log, database_of, one_time, recorded_logs, send, serving
from rankmem_aggregator import connect
from rankmem_aggregator.lake import commits
from rankmem_aggregator.lake import compact as compacting
from rankmem_aggregator.lake import prune as pruning
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.moves import add_and_move
from rankmem_aggregator.lake.prune import prune_lake
from rankmem_aggregator.lake.vacuum import vacuum_lake
from rankmem_aggregator.retention.limits import NS_PER_DAY, Limits
from rankmem_protos.errors import Code, RankmemError


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


@pytest.mark.long
def test_two_aggregators_write_while_a_lake_is_compacted(
    tmp_path: Path, logs: list[Log], clock: None, database: Path
) -> None:
    lake = str(tmp_path / "lake")
    is_over = threading.Event()
    num_joined = []

    def compact() -> None:
        while not is_over.wait(0.05):
            num_joined.append(compact_lake(lake).num_old)
            vacuum_lake(lake)

    with ExitStack() as stack:
        addresses = [stack.enter_context(serving(lake)).address for _ in range(2)]
        compacting_thread = threading.Thread(target=compact, name="compacting")
        compacting_thread.start()
        try:
            for number, log in enumerate(logs):
                send(addresses[number % 2], [log])
        finally:
            is_over.set()
            compacting_thread.join()
    assert sum(num_joined) > 0
    assert check_lake(lake).faults == ()
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        assert table_differences(file, queries) == []


def test_a_session_that_is_over_is_cut_and_what_follows_is_not_lost(
    tmp_path: Path, logs: list[Log], clock: None, database: Path
) -> None:
    lake, half = str(tmp_path / "lake"), len(logs) // 2
    with serving(lake) as first:
        send(first.address, logs[:half])
    with patch.object(compacting, "sessions_over", lambda *about: frozenset({SESSION})):
        compact_lake(lake, part_rows=300)
        assert catalog_of(lake).has_openings(SESSION)
        assert len({file.segment for file in catalog_of(lake).of_table("memory_event")}) > 1
        with serving(lake) as second:
            send(second.address, logs)  # the first half is there
        assert not catalog_of(lake).has_openings(SESSION)
        for _ in range(2):
            with connect(database) as file, connect(f"lake:{lake}") as queries:
                assert quick_differences(file, queries, SESSION) == []
            compact_lake(lake, part_rows=300)
    assert catalog_of(lake).has_openings(SESSION)
    files = [(f.table_name, f.segment, f.hosts) for f in catalog_of(lake).of_session(SESSION)]
    assert len(files) == len(set(files))


def test_no_more_is_accepted_of_a_session_that_was_pruned(
    tmp_path: Path, logs: list[Log], clock: None
) -> None:
    lake = str(tmp_path / "lake")
    log = logs[0]
    with serving(lake) as first, IngestClient(first.address) as client:
        client.send(open_spool=log.opening)
        client.reply()
        client.send(batch=log.batches[0])
        client.acks(1)
    later = Mock(time_ns=lambda: STORED_NS + 2 * NS_PER_DAY)
    with patch.object(pruning, "time", later):
        assert prune_lake(lake, Limits(days=1)).session_ids == (SESSION,)
    with serving(lake) as second, IngestClient(second.address) as client:
        client.send(open_spool=log.opening)
        refusal = client.reply().refusal
    assert (refusal.code, "was deleted here" in refusal.message) == ("not_found", True)


def test_nor_by_an_aggregator_that_has_received_more_of_it(
    tmp_path: Path, logs: list[Log], clock: None
) -> None:
    """Neither the rest of a spool that it knows, nor another spool of the session."""
    lake = str(tmp_path / "lake")
    log = logs[0]
    with serving(lake) as first:
        with IngestClient(first.address) as client:
            client.send(open_spool=log.opening)
            client.reply()
            client.send(batch=log.batches[0])
            client.acks(1)
            with patch.object(pruning, "time", Mock(time_ns=lambda: STORED_NS + 2 * NS_PER_DAY)):
                assert prune_lake(lake, Limits(days=1)).session_ids == (SESSION,)
            client.send(batch=log.batches[1])
            assert client.reply().refusal.code in ("not_found", "conflict")
        for opening in (log.opening, logs[1].opening):
            with IngestClient(first.address) as client:
                client.send(open_spool=opening)
                assert "was deleted here" in client.reply().refusal.message
    assert {file.table_name for file in catalog_of(lake).of_session(SESSION)} == {"pruned_spool"}


def test_a_commit_whose_answer_was_lost_counts_although_its_files_were_joined_since(
    tmp_path: Path, logs: list[Log], clock: None, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    made: list[object] = []

    def answered_late(*given: Any) -> None:
        add_and_move(*given)
        made.append(given)
        if len(made) == 3:  # by now there is something to join
            compact_lake(lake)
            raise RankmemError(Code.EXHAUSTED, "the store did not answer in time")

    monkeypatch.setattr(commits, "add_and_move", answered_late)
    with serving(lake) as aggregator:
        for log in logs:
            send(aggregator.address, [log])
    assert len(made) > 3
    assert check_lake(lake).faults == ()
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        assert table_differences(file, queries) == []
