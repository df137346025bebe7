"""Spools that cannot be stored, into a real database: kept, told to be missing, in nobody's way."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmem_agent.spool.folder import spools
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_cli.show.status import set_aside_lines
from rankmem_protos.errors import Code
from rankmem_ship import pace as pace_module
from rankmem_ship import spool_upload as upload_module
from rankmem_ship.config import ShipConfig
from rankmem_ship.deliver import deliver
from rankmem_ship.encoding import EncodedBatch, encode
from rankmem_ship.marks import MARK_NAME, Mark, write_mark
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.shipper import Shipper
from spool_synthetic import SECRET, SyntheticSpool, training_records

TIMEOUT_S = 60.0
SESSION = "0TESTSESSION"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root" / SESSION
    folder.mkdir(parents=True)
    monkeypatch.setenv("RANKMEM_SPOOL_DIR", str(folder.parent))
    monkeypatch.setattr("rankmem_ship.shipper.REOPEN_S", 0.05)
    monkeypatch.setattr(pace_module, "BATCH_RECORDS", 2_000)
    return folder


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[server.Aggregator]:
    with opened(tmp_path / "mem.duckdb") as running:
        yield running


def opened(path: Path) -> server.Aggregator:
    return server.open(AggregatorConfig(database_path=path, listen="127.0.0.1:0", group_interval_s=0.0))


def spool_of(session: Path, address: str, *, rank: int = 0, alive: bool = False) -> SyntheticSpool:
    spool = SyntheticSpool(path=session / f"0-{rank}-1", rank=rank, aggregator=address, alive=alive)
    spool.append(training_records(spool, 2_000, live_calls=20))
    return spool


def ask(aggregator: server.Aggregator, sql: str) -> list[tuple[object, ...]]:
    with connect(aggregator.address) as queries:
        return [tuple(row.values()) for row in queries.sql(sql).to_pylist()]


def poisoned(monkeypatch: pytest.MonkeyPatch, rank: int, number: int) -> None:
    """The rank's batch of that number has rows that the aggregator refuses, however often they come."""

    def encoding(pairing: Pairing, spool_id: str, *args: object) -> list[EncodedBatch]:
        batches = encode(pairing, spool_id, *args)  # type: ignore[arg-type]
        for batch in batches:
            if spool_id.split("-")[2] == str(rank) and batch.message.sequence_first // 2_000 == number:
                batch.message.tables[0].arrow_ipc = b"no Arrow at all"
        return batches

    monkeypatch.setattr(upload_module, "encode", encoding)


COMPLETE = "SELECT rank, complete, events_lost FROM rank_overview ORDER BY rank"
LOG = "SELECT rank, last_sequence, final FROM ingest_progress ORDER BY rank"


@pytest.mark.parametrize("number", [0, 1, 3])
def test_what_is_refused_for_ever_is_a_gap_and_no_answer_says_complete(
    session: Path, aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Any batch, the first too: what follows it on the wire already is not taken."""
    poisoned(monkeypatch, rank=1, number=number)
    made = [spool_of(session, aggregator.address, rank=rank) for rank in range(2)]
    for spool in made:
        spool.end()
    report = deliver(session, timeout_s=TIMEOUT_S)
    assert (report.spools_delivered, report.spools_set_aside) == (1, [session / "set-aside" / "0-1-1"])
    lost = made[1].next_seq - 2_000 * number
    assert ask(aggregator, COMPLETE) == [(0, True, 0), (1, False, lost)]
    gaps = "SELECT rank, sequence_first, sequence_last, records, why FROM gap"
    assert ask(aggregator, gaps) == [(1, 2_000 * number, made[1].next_seq - 1, lost, "set_aside")]
    assert ask(aggregator, LOG) == [(rank, made[rank].next_seq, True) for rank in range(2)]
    assert ask(aggregator, "SELECT coalesce(max(seq), -1) FROM memory_event WHERE rank = 1") < [
        (2_000 * number,)
    ]
    ((sentence,),) = ask(aggregator, "SELECT sentence FROM incompleteness")
    assert f"{lost:,} records (at most as many events) are missing" in str(sentence)
    assert "set aside on its host" in str(sentence)
    (line,) = set_aside_lines([session])
    assert line.startswith("spool 0-1-1 is set aside: ")
    assert str(session / "set-aside" / "0-1-1") in line


def test_one_that_was_set_aside_is_not_deleted_by_the_database_that_knows_it_as_missing(
    session: Path, aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    poisoned(monkeypatch, rank=0, number=1)
    spool = spool_of(session, aggregator.address)
    spool.end()
    deliver(session, timeout_s=TIMEOUT_S)
    monkeypatch.setattr(upload_module, "encode", encode)
    aside = session / "set-aside"
    again = deliver(aside, timeout_s=TIMEOUT_S)
    assert (again.spools_delivered, [error.code for error in again.errors]) == (0, [Code.CONFLICT])
    assert list((aside / "0-0-1").glob("segment-*"))
    with opened(tmp_path / "other.duckdb") as other:
        assert deliver(aside, other.address, timeout_s=TIMEOUT_S).spools_delivered == 1
        assert ask(other, COMPLETE) == [(0, True, 0)]
    assert not aside.exists()


@pytest.mark.parametrize("where", ["set-aside", "."])
def test_one_whose_mark_is_damaged_is_not_deleted_either(
    session: Path,
    aggregator: server.Aggregator,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    where: str,
) -> None:
    """In the second case a shipper meets it first, which writes the mark anew."""
    poisoned(monkeypatch, rank=0, number=1)
    spool_of(session, aggregator.address).end()
    deliver(session, timeout_s=TIMEOUT_S)
    monkeypatch.setattr(upload_module, "encode", encode)
    aside = session / "set-aside"
    (aside / "0-0-1" / MARK_NAME).write_text("{")
    if where == ".":
        (aside / "0-0-1").rename(session / "0-0-1")
        deliver(session, timeout_s=TIMEOUT_S)
    again = deliver(aside, timeout_s=TIMEOUT_S)
    assert (again.spools_delivered, [error.code for error in again.errors]) == (0, [Code.CONFLICT])
    assert list((aside / "0-0-1").glob("segment-*"))
    with opened(tmp_path / "other.duckdb") as other:
        assert deliver(aside, other.address, timeout_s=TIMEOUT_S).spools_delivered == 1
        assert ask(other, COMPLETE) == [(0, True, 0)]


def test_a_rank_that_lives_is_told_to_be_incomplete_at_once_and_set_aside_when_it_ends(
    session: Path, aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, rank=0, number=1)
    spool = spool_of(session, aggregator.address, alive=True)
    shipper = Shipper(session, ShipConfig(grace_s=0.0))
    run_until(shipper, lambda: ask(aggregator, "SELECT to_end FROM gap") == [(True,)])
    assert ask(aggregator, COMPLETE) == [(0, False, None)]
    assert ask(aggregator, "SELECT final FROM ingest_progress") == [(False,)]
    assert spools(session) == [spool.path], "it stays where the rank writes"
    assert len(set_aside_lines([session])) == 1
    shipper.close("done")
    spool.append(training_records(spool, 500, live_calls=20))
    again = Shipper(session, ShipConfig(grace_s=0.0))  # another process: the mark tells it
    run_until(again, lambda: bool(again.uploads) and again.is_idle)
    spool.end()
    run_until(again, lambda: again.is_done)
    again.close("done")
    assert ask(aggregator, LOG) == [(0, spool.next_seq, True)]
    assert ask(aggregator, COMPLETE) == [(0, False, None)]
    assert ask(aggregator, "SELECT end_reason FROM rank_info") == [("exit",)]
    assert ask(aggregator, "SELECT (SELECT count(*) FROM memory_event) = events FROM rank_info") == [(True,)]
    assert (session / "set-aside" / "0-0-1").is_dir()


def run_until(shipper: Shipper, condition: Callable[[], bool]) -> None:
    over_s = time.monotonic() + TIMEOUT_S
    shipper.scan()
    while not condition():
        assert time.monotonic() < over_s, shipper.error
        shipper.step()
        shipper.wait()


@pytest.mark.parametrize("error", [RuntimeError("odd"), OverflowError("odd"), KeyError("odd")])
def test_a_spool_that_cannot_be_paired_is_set_aside_and_the_others_go_on(
    session: Path, aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    cut = Pairing.cut

    def failing(self: Pairing, **kwargs: object) -> object:
        if self._meta.rank == 0:
            raise error
        return cut(self, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Pairing, "cut", failing)
    for rank in range(3):
        spool_of(session, aggregator.address, rank=rank).end()
    report = deliver(session, timeout_s=TIMEOUT_S)
    assert (report.spools_delivered, report.spools_set_aside) == (2, [session / "set-aside" / "0-0-1"])
    assert type(error).__name__ in report.errors[0].message
    assert [row[:2] for row in ask(aggregator, COMPLETE)] == [(0, False), (1, True), (2, True)]


def test_facts_that_no_column_holds_and_a_command_of_60_000_arguments_keep_nothing_back(
    session: Path, aggregator: server.Aggregator
) -> None:
    made = [spool_of(session, aggregator.address, rank=rank) for rank in range(2)]
    path = made[1].path / "meta.json"
    meta = json.loads(path.read_text())
    meta["session"] |= {"command": "train.py " + "--argument=value " * 60_000, "world_size": 10**11}
    meta["rank"] |= {"dp": 99_999_999_999, "world_size": 10**11}
    path.write_text(json.dumps(meta))
    for spool in made:
        spool.end()
    report = deliver(session, timeout_s=TIMEOUT_S)
    assert (report.spools_delivered, report.errors) == (2, [])
    assert ask(aggregator, COMPLETE) == [(0, True, 0), (1, True, 0)]
    assert ask(aggregator, "SELECT dp FROM rank_info WHERE rank = 1") == [(None,)]
    ((command,),) = ask(aggregator, "SELECT command FROM session")
    assert str(command or "train.py … (bytes more)").endswith("bytes more)")


def test_the_database_knows_a_spool_by_the_hash_of_its_secret(
    session: Path, aggregator: server.Aggregator
) -> None:
    spool_of(session, aggregator.address).end()
    deliver(session, timeout_s=TIMEOUT_S)
    kept = hashlib.sha256(bytes.fromhex(SECRET)).hexdigest()
    assert ask(aggregator, "SELECT secret_hash FROM ingest_progress") == [(kept,)]


def test_a_spool_with_another_secret_is_set_aside_and_moves_nothing(
    session: Path, aggregator: server.Aggregator, tmp_path: Path
) -> None:
    spool = spool_of(session, aggregator.address, alive=True)
    deliver(session, timeout_s=TIMEOUT_S)
    stored = ask(aggregator, LOG)
    path = spool.path / "meta.json"
    path.write_text(path.read_text().replace(SECRET, "00" * 16))
    spool.end()
    report = deliver(session, timeout_s=TIMEOUT_S)
    assert report.errors[0].code is Code.DENIED
    assert ask(aggregator, LOG) == stored
    assert (session / "set-aside" / spool.path.name).is_dir()


def test_a_mark_that_cannot_be_written_leaves_the_spool_as_it_is_and_tells_nothing(
    session: Path, aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    poisoned(monkeypatch, rank=0, number=1)
    monkeypatch.setattr("rankmem_ship.set_aside.write_mark", full)
    spool = spool_of(session, aggregator.address)
    spool.end()
    report = deliver(session, timeout_s=TIMEOUT_S)
    assert (report.spools_delivered, report.spools_set_aside, report.spools_left) == (0, [], 1)
    assert spools(session) == [spool.path]
    assert ask(aggregator, "SELECT count(*) FROM gap") == [(0,)]


def test_the_last_look_for_others_touches_nothing(session: Path) -> None:
    """The lock is given back by then: another shipper may be at work on them."""
    config = ShipConfig(grace_s=0.0)
    shipper = Shipper(session, config)
    assert not shipper.has_new_spools
    spool = spool_of(session, "127.0.0.1:9")
    write_mark(spool.path, Mark(code=Code.INVALID, message="refused", databases={"another": 7}))
    before = {path.name: path.stat().st_mtime_ns for path in spool.path.iterdir()}
    assert shipper.has_new_spools
    assert {path.name: path.stat().st_mtime_ns for path in spool.path.iterdir()} == before
    shipper.scan()
    assert not shipper.has_new_spools, "it is known"
    shipper.close("done")


def test_a_spool_that_cannot_be_read_is_not_new(session: Path) -> None:
    config = ShipConfig(grace_s=0.0)
    shipper = Shipper(session, config)
    (spool_of(session, "127.0.0.1:9").path / "meta.json").write_text("{")
    shipper.scan()
    assert not shipper.has_new_spools
    shipper.close("done")
