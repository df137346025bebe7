"""Imports into a file are whole or not at all; into an aggregator stored once, however often they break."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from import_read import asked, imported
from made_snapshots import dump, random_snapshot
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.file_import import Loader, RankLog
from rankmem_aggregator.server import aggregator as server
from rankmem_cli.args.options import Target
from rankmem_cli.run.importing import Request, import_recordings
from rankmem_imports import delivery as sending
from rankmem_imports import staging
from rankmem_imports.planning import PlannedSession, plan
from rankmem_imports.search import search
from rankmem_imports.staging import StagedRank, stage
from rankmem_protos.collector_pb2 import Batch
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code

COUNTED = ("memory_event", "allocation_record", "allocation_end", "memory_bucket", "rank_info", "session")
EVENTS = 700


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Two ranks."""
    for rank in range(2):
        dump(tmp_path / "run" / f"rank{rank}.pickle", random_snapshot(rank, events=EVENTS))
    return tmp_path / "run"


@pytest.fixture
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of some kilobytes, so that a rank has many."""
    monkeypatch.setattr(staging, "MESSAGE_BYTES_MAX", 16_384)


def staged(folder: Path, into: Path) -> tuple[PlannedSession, list[StagedRank]]:
    """The ranks of a folder, laid down."""
    [job] = plan(search([str(folder)]).found).sessions
    into.mkdir()
    return job, [
        stage(member.recording, job.identity(member), job.spool_id(member), into / str(member.rank))
        for member in job.members
    ]


def content(database: Path) -> dict[str, Any]:
    """Counts, and all events and blocks."""
    found: dict[str, Any] = {table: asked(database, f"SELECT count(*) FROM {table}") for table in COUNTED}
    found["events"] = asked(
        database,
        "SELECT rank, seq, action, address, size_bytes, requested_bytes, allocation_id FROM memory_event "
        "ORDER BY rank, seq",
    )
    found["blocks"] = asked(
        database,
        "SELECT rank, allocation_id, size_bytes, freed_seq, preexisting FROM allocation "
        "ORDER BY rank, allocation_id",
    )
    return found


def test_a_rank_in_many_messages_is_stored_as_one_in_few(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(tmp_path / "few.duckdb", recordings)
    monkeypatch.setattr(staging, "MESSAGE_BYTES_MAX", 16_384)
    _, ranks = staged(recordings, tmp_path / "staged")
    messages = list(ranks[0].messages({"session_id": ranks[0].identity.session_id, "source": "x"}))
    assert len(messages) > 4
    firsts = [message.sequence_first for message in messages[1:]]
    assert firsts == [message.sequence_last + 1 for message in messages[:-1]]
    imported(tmp_path / "many.duckdb", recordings)
    many, few = content(tmp_path / "many.duckdb"), content(tmp_path / "few.duckdb")
    assert many == few
    assert few["memory_event"][0][0] > 2 * EVENTS


@pytest.mark.usefixtures("small_messages")
def test_a_file_whose_messages_break_off_leaves_nothing_behind(recordings: Path, tmp_path: Path) -> None:
    job, ranks = staged(recordings, tmp_path / "staged")
    row = job.row_with(ranks)

    def broken(rank: StagedRank) -> Iterator[Batch]:
        yield from itertools.islice(rank.messages(row), 3)
        raise OSError("the disk went away")

    database = tmp_path / "whole.duckdb"
    whole, torn = ranks
    with Loader(database) as loader:
        logs = [
            RankLog(opening=whole.opening(), messages=whole.messages(row)),
            RankLog(opening=torn.opening(), messages=broken(torn)),
        ]
        with pytest.raises(OSError, match="went away"):
            loader.load(logs)
    assert {count for table in COUNTED for (count,) in asked(database, f"SELECT count(*) FROM {table}")} == {
        0
    }
    with Loader(database) as loader:
        logs = [RankLog(opening=rank.opening(), messages=rank.messages(row)) for rank in ranks]
        assert loader.load(logs)
        logs = [RankLog(opening=rank.opening(), messages=rank.messages(row)) for rank in ranks]
        assert not loader.load(logs)
    imported(tmp_path / "other.duckdb", recordings)
    assert content(database) == content(tmp_path / "other.duckdb")


class Killed(BaseException):
    """Ends an import where no code of it looks."""


@pytest.mark.usefixtures("small_messages")
def test_an_import_that_is_killed_and_begun_again_stores_everything_once(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "served.duckdb"
    take = sending.Delivery._take
    acknowledged = 0

    def dies(self: sending.Delivery, log: Any, reply: Any) -> bool:
        nonlocal acknowledged
        moved = take(self, log, reply)
        acknowledged += reply.WhichOneof("body") == "ack"
        if acknowledged in (2, 9):
            acknowledged += 1
            raise Killed
        return moved

    with server.open(AggregatorConfig.embedded(database)) as running:
        place = Target(aggregator=running.address, credentials=Credentials())
        request = Request(paths=[str(recordings)])
        monkeypatch.setattr(sending.Delivery, "_take", dies)
        for _ in range(2):
            with pytest.raises(Killed):
                import_recordings(request, place)
        monkeypatch.setattr(sending.Delivery, "_take", take)
        assert import_recordings(request, place).failed == []
        assert import_recordings(request, place).failed == []
    imported(tmp_path / "other.duckdb", recordings)
    assert content(database) == content(tmp_path / "other.duckdb")


def test_a_file_that_an_aggregator_holds_is_imported_through_it(recordings: Path, tmp_path: Path) -> None:
    database = tmp_path / "held.duckdb"
    with server.open(AggregatorConfig.embedded(database)):
        assert imported(database, recordings).failed == []
    assert asked(database, "SELECT count(*) FROM rank_info") == [(2,)]


def test_an_address_that_nobody_answers_is_said_to_be_one(
    recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "CONNECT_TIMEOUT_S", 0.5)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"127.0.0.1:{held.getsockname()[1]}"
        place = Target(aggregator=address, credentials=Credentials())
        report = import_recordings(Request(paths=[str(recordings)]), place)
    assert [path.name for path, _ in report.failed] == ["rank0.pickle", "rank1.pickle"], "it is asked once"
    for _, error in report.failed:
        assert error.code is Code.UNAVAILABLE
        assert address in error.message
