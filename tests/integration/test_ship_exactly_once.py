"""kill -9 of the shipper, anywhere: what is stored is what one undisturbed run would have stored."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from fake_collector import Cut, FakeCollector
from rankmem_agent.spool import layout
from rankmem_agent.spool.exits import Exit, write_exit
from rankmem_agent.spool.layout import RECORDS_PER_SEGMENT, ExitKind, Kind
from rankmem_protos.collector_pb2 import Batch, IngestRequest
from rankmem_ship import pace as pace_module
from rankmem_ship import send_buffer
from rankmem_ship import spool_upload as upload_module
from rankmem_ship.config import ShipConfig
from rankmem_ship.pace import SPOOL_BATCHES_MAX
from rankmem_ship.sender import IngestCall
from rankmem_ship.shipper import Shipper
from rankmem_ship.spool_reader import reader as reader_module
from rankmem_ship.spool_reader import segments as segments_module
from spool_synthetic import SyntheticSpool, training_records

NOW = ShipConfig(grace_s=0.0)
COMPARED = ("memory_event", "operator_call", "marker", "step", "gap", "oom")
TIMEOUT_S = 30.0


class Killed(BaseException):
    """Stands for SIGKILL within the test's process: nobody catches it."""


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    with FakeCollector() as fake:
        yield fake


def make_spool(session: Path, collector: FakeCollector, *, calls: int, rank: int = 0) -> SyntheticSpool:
    spool = SyntheticSpool(path=session / f"0-{rank}-1", rank=rank, aggregator=collector.address)
    spool.append(training_records(spool, calls, live_calls=40))
    spool.end()
    return spool


def ship_all(session: Path, config: ShipConfig = NOW) -> Shipper:
    """Run a shipper in this thread until all is delivered."""
    shipper = Shipper(session, config)
    deadline_s = time.monotonic() + TIMEOUT_S
    shipper.scan()
    try:
        while not shipper.is_done:
            assert time.monotonic() < deadline_s, shipper.error
            shipper.step()
            shipper.wait()
    finally:
        shipper.close("done")
    return shipper


def stored(collector: FakeCollector) -> dict[str, list[dict[str, Any]]]:
    """What the tables hold, in an order of its own, without what depends on the cuts."""
    found = {table: collector.rows(table) for table in COMPARED}
    records = collector.rows("allocation_record")
    allocations = {(row["rank"], row["allocation_id"]): dict(row) for row in records}
    assert len(allocations) == len(records)
    for row in collector.rows("allocation_end"):
        ends = {k: v for k, v in row.items() if "free" in k and v is not None}
        allocations[row["rank"], row["allocation_id"]] |= ends
    found["allocation"] = [allocations[key] for key in sorted(allocations)]  # type: ignore[type-var]
    stack_ids = {row["stack_id"] for row in collector.rows("operator_call")}
    assert stack_ids == {row["stack_id"] for row in collector.rows("stack_frame")}
    return found


def undisturbed(session: Path, collector: FakeCollector) -> dict[str, list[dict[str, Any]]]:
    """What one whole run over a copy of the spools stores; the collector is empty afterwards."""
    copy = session.with_name("undisturbed")
    shutil.copytree(session, copy)
    ship_all(copy)
    expected = stored(collector)
    forget(collector)
    return expected


def forget(collector: FakeCollector) -> None:
    collector.batches.clear()
    collector.last.clear()
    collector.final.clear()


ACTS: Final = ("send", "savez", "fsync", "rename", "unlink", "rmtree")


def die_at(monkeypatch: pytest.MonkeyPatch, number: int, among: Collection[str] = ACTS) -> None:
    """Make the ``number``-th durable act among these (write, sync, rename, delete, send) its last one."""
    acts = count(1)

    def die(name: str) -> None:
        if name in among and next(acts) == number:
            raise Killed(name)

    def deadly(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            die(name)
            return act(*args, **kwargs)

        return wrapped

    def sends(self: IngestCall, request: IngestRequest) -> None:
        if request.WhichOneof("body") == "batch":
            die("send")
        plain_send(self, request)

    plain_send = IngestCall.send
    for owner, name in (
        (os, "fsync"),
        (os, "rename"),
        (Path, "rename"),
        (Path, "unlink"),
        (shutil, "rmtree"),
    ):
        monkeypatch.setattr(owner, name, deadly(name, getattr(owner, name)))
    monkeypatch.setattr(np, "savez", deadly("savez", np.savez))
    monkeypatch.setattr(IngestCall, "send", sends)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> int:
    """Segments of 1024 records and batches of 600, so that a small log has several of both; at most two
    batches wait for their acknowledgement, so that a checkpoint is written before all is sent."""
    for module in (layout, reader_module, segments_module, upload_module):
        monkeypatch.setattr(module, "RECORDS_PER_SEGMENT", 1024)
    monkeypatch.setattr(pace_module, "BATCH_RECORDS", 600)
    monkeypatch.setattr(send_buffer, "IN_FLIGHT_BATCHES_MAX", 2)
    monkeypatch.setattr(upload_module, "CHECKPOINT_INTERVAL_S", 0.0)
    return 1024


def test_killed_between_any_two_of_its_acts_a_shipper_loses_and_doubles_nothing(
    tmp_path: Path, session: Path, collector: FakeCollector, small_segments: int
) -> None:
    make_spool(session, collector, calls=350)
    expected = undisturbed(session, collector)
    died_in: list[str] = []

    def killed(number: int, among: Collection[str] = ACTS) -> bool:
        victim = tmp_path / f"victim-{number}-{len(among)}-{len(died_in)}"
        shutil.copytree(session, victim)
        is_killed = False
        with pytest.MonkeyPatch.context() as deadly:
            die_at(deadly, number, among)
            try:
                ship_all(victim)
            except Killed as death:
                died_in.append(str(death))
                is_killed = True
        ship_all(victim)
        assert stored(collector) == expected, died_in[-1]
        assert not list(victim.glob("0-*"))
        forget(collector)
        return is_killed

    survived = 0  # how many acts there are depends on when acknowledgements come
    for number in range(1, 200):
        survived += not killed(number)
        if survived == 3:
            break
    for act in set(ACTS) - set(died_in):  # its number was another one each time
        assert killed(1, [act])
    assert set(ACTS) <= set(died_in)


def test_killed_by_sigkill_at_random_times_a_shipper_loses_and_doubles_nothing(
    session: Path, collector: FakeCollector
) -> None:
    for rank in range(2):
        make_spool(session, collector, calls=15_000, rank=rank)
    expected = undisturbed(session, collector)
    rng = random.Random(5)
    target = 0
    for _ in range(5):
        process = start_shipper(session)
        target += rng.randrange(1, 3)
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(collector.batches) < target and process.poll() is None:  # it may have nothing left to send
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start_shipper(session)
    assert process.wait(timeout=60) == 0
    assert sorted_rows(stored(collector)) == sorted_rows(expected)
    assert not list(session.glob("0-*"))


def start_shipper(session: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", "-m", "rankmem_ship", str(session)])


def sorted_rows(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Ranks arrive interleaved: compare the rows as sets that count."""
    return {table: sorted(map(repr, rows)) for table, rows in tables.items()}


def test_a_connection_cut_before_and_after_the_store_doubles_nothing(
    session: Path, collector: FakeCollector, small_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_ship.sender.BACKOFF_MAX_S", 0.01)
    make_spool(session, collector, calls=1500)
    expected = undisturbed(session, collector)
    cuts = iter([False, True, False, False, True, True])

    def maybe_cut(batch: Batch) -> None:
        if next(cuts, False):
            raise Cut

    collector.before_store = collector.before_ack = maybe_cut
    before = collector.num_calls
    ship_all(session)
    assert collector.num_calls - before == 4
    assert stored(collector) == expected


def test_an_aggregator_that_comes_late_and_restarts_gets_everything(session: Path) -> None:
    with FakeCollector() as found:
        port = found.port
    collector = FakeCollector(port=port)
    make_spool(session, collector, calls=30_000)
    shipper = Shipper(session, NOW)
    stop = threading.Event()
    thread = threading.Thread(target=run_until_done, args=(shipper, stop))
    thread.start()
    time.sleep(0.3)
    collector.start()
    assert collector.wait_until(lambda: len(collector.batches) >= 3)
    collector.stop()
    collector.start()
    thread.join(TIMEOUT_S)
    stop.set()
    collector.stop()
    shipper.close("done")
    events = [row["seq"] for row in collector.rows("memory_event")]
    assert events == sorted(set(events))
    assert len(events) == collector.rows("rank_info")[-1]["events"]
    assert not list(session.glob("0-*"))


def run_until_done(shipper: Shipper, stop: threading.Event) -> None:
    shipper.scan()
    while not shipper.is_done and not stop.is_set():
        shipper.step()
        shipper.wait()


def test_another_database_gets_a_gap_row_and_every_living_block(
    session: Path, collector: FakeCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "CHECKPOINT_INTERVAL_S", 0.0)
    spool = SyntheticSpool(path=session / "0-0-1", alive=True, aggregator=collector.address)
    records = training_records(spool, 10_000, live_calls=40)
    spool.append(records[: RECORDS_PER_SEGMENT + 5000])
    first = Shipper(session, NOW)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (first.uploads and first.is_idle):
        assert time.monotonic() < deadline_s
        first.step()
        first.wait()
    first.close("done")
    lost = max(collector.last.values()) + 1
    spool.append(records[RECORDS_PER_SEGMENT + 5000 :])
    spool.end()
    with FakeCollector(database_id="db-2") as other:
        ship_all(session, ShipConfig(aggregator=other.address, grace_s=0.0))
        (gap,) = other.rows("gap")
        assert (gap["sequence_first"], gap["why"]) == (0, "other_database")
        assert RECORDS_PER_SEGMENT <= int(str(gap["sequence_last"])) + 1 <= lost
        told = {row["allocation_id"] for row in other.rows("allocation_record")}
        ended = {row["allocation_id"] for row in other.rows("allocation_end")}
        freed = {row["allocation_id"] for row in other.rows("memory_event") if row["action"] != "alloc"}
        assert ended <= told
        assert freed <= told
        assert len([i for i in told if int(str(i)) <= int(str(gap["sequence_last"]))]) >= 40
        assert other.rows("rank_info")[-1]["complete"] is False
        named = {row["stack_id"] for row in other.rows("operator_call")}
        assert named <= {row["stack_id"] for row in other.rows("stack_frame")}


def test_torn_records_and_lost_segments_arrive_as_gap_rows_and_never_as_events(
    session: Path, collector: FakeCollector
) -> None:
    spool = SyntheticSpool(path=session / "0-0-1", aggregator=collector.address)
    records = training_records(spool, 9000, live_calls=40)
    spool.append(records[:RECORDS_PER_SEGMENT], torn=[100, 101, 500])
    spool.lose_segment()
    spool.append(records[RECORDS_PER_SEGMENT:])
    ship_all(session)
    gaps = [(g["sequence_first"], g["sequence_last"], g["records"], g["why"]) for g in collector.rows("gap")]
    lost = (RECORDS_PER_SEGMENT, 2 * RECORDS_PER_SEGMENT - 1, RECORDS_PER_SEGMENT, "spool_full")
    assert gaps == [(100, 101, 2, "torn"), (500, 500, 1, "torn"), lost]
    committed = np.delete(records, [100, 101, 500])
    assert len(collector.rows("memory_event")) == int((committed["kind"] == Kind.EVENT).sum())
    assert not {100, 101, 500} & {row["seq"] for row in collector.rows("memory_event")}
    rank = collector.rows("rank_info")[-1]
    assert (rank["end_reason"], rank["complete"]) == ("killed", False)
    assert rank["events_lost"] == RECORDS_PER_SEGMENT + 3


@pytest.mark.parametrize(
    ("left", "reason", "code"),
    [
        (None, "exit", None),
        (Exit(kind=ExitKind.EXIT, code=0), "exit", 0),
        (Exit(kind=ExitKind.EXIT, code=3), "exit 3", 3),
    ],
)
def test_a_process_that_ended_in_order_was_not_killed_though_its_end_found_no_room(
    session: Path, collector: FakeCollector, left: Exit | None, reason: str, code: int | None
) -> None:
    spool = SyntheticSpool(path=session / "0-0-1", aggregator=collector.address)
    spool.append(training_records(spool, 9000, live_calls=40)[:RECORDS_PER_SEGMENT])
    spool.lose_segment()
    spool.end(found_room=False)
    if left is not None:
        write_exit(spool.path, left)
    ship_all(session)
    rank = collector.rows("rank_info")[-1]
    assert (rank["end_reason"], rank["exit_code"], rank["complete"]) == (reason, code, False)


def test_a_full_window_waits_for_acknowledgements(
    session: Path, collector: FakeCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace_module, "BATCH_RECORDS", 4096)
    make_spool(session, collector, calls=60_000)
    release = threading.Event()
    collector.before_store = lambda batch: release.wait(TIMEOUT_S) and None
    shipper = Shipper(session, NOW)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not any(upload.queue.num_in_flight == SPOOL_BATCHES_MAX for upload in shipper.uploads.values()):
        assert time.monotonic() < deadline_s
        shipper.step()
        shipper.wait()
    for _ in range(3):
        shipper.step()
    (upload,) = shipper.uploads.values()
    assert upload.queue.num_in_flight == SPOOL_BATCHES_MAX
    release.set()
    while not shipper.is_done:
        assert time.monotonic() < deadline_s
        shipper.step()
        shipper.wait()
    shipper.close("done")
    assert len(collector.final) == 1
