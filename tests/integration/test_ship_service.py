"""The shipper as a process: its lock, its leaving, its signals; and delivery from disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fake_collector import FakeCollector
from rankmem_agent.spool.election import take_lock
from rankmem_protos.collector_pb2 import Batch, IngestReply, Refusal
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import closing
from rankmem_ship.deliver import deliver, find_spools
from rankmem_ship.status import WAITING, state_of
from spool_synthetic import SyntheticSpool, training_records

NOWHERE = "127.0.0.1:9"
TIMEOUT_S = 60.0


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "0TESTSESSION"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    with FakeCollector() as fake:
        yield fake


def spool_of(session: Path, aggregator: str, *, rank: int = 0, alive: bool = False) -> SyntheticSpool:
    spool = SyntheticSpool(path=session / f"0-{rank}-1", rank=rank, aggregator=aggregator, alive=alive)
    spool.append(training_records(spool, 200, live_calls=20))
    return spool


def start(session: Path, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "rankmem_ship", str(session)]
    return subprocess.Popen(command, env=os.environ | environment)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_it_leaves_when_all_is_acknowledged_and_says_so(session: Path, collector: FakeCollector) -> None:
    spool_of(session, collector.address).end()
    assert start(session).wait(TIMEOUT_S) == 0
    assert not list(session.glob("*-*"))
    status = json.loads((session / "shipper.json").read_text())
    assert (status["state"], status["pending_records"], status["error"]) == ("done", 0, "")
    assert "delivered 0-0-1" in (session / "shipper.log").read_text()


def test_where_another_holds_the_lock_it_leaves_at_once(session: Path, collector: FakeCollector) -> None:
    spool_of(session, collector.address).end()
    lock_fd = take_lock(session)
    assert lock_fd is not None
    try:
        assert start(session).wait(TIMEOUT_S) == 0
    finally:
        os.close(lock_fd)
    assert list(session.glob("0-0-1"))
    assert not collector.batches


def test_it_finds_a_rank_that_comes_later(session: Path, collector: FakeCollector) -> None:
    first = spool_of(session, collector.address, alive=True)
    process = start(session)
    assert collector.wait_until(lambda: bool(collector.last), TIMEOUT_S)
    spool_of(session, collector.address, rank=1, alive=True).end()
    assert collector.wait_until(lambda: len(collector.final) == 1, TIMEOUT_S)
    first.end()
    assert process.wait(TIMEOUT_S) == 0
    assert len(collector.final) == 2


def test_without_an_aggregator_it_gives_up_after_the_drain_time_and_leaves_the_spool(session: Path) -> None:
    spool_of(session, NOWHERE).end()
    assert start(session, RANKMEM_SHIP_DRAIN_S="0.5").wait(TIMEOUT_S) == 1
    assert (session / "0-0-1" / "meta.json").exists()
    status = json.loads((session / "shipper.json").read_text())
    assert status["state"] == "given_up"
    assert NOWHERE in status["error"]


def test_the_first_signal_drains_what_is_written(session: Path, collector: FakeCollector) -> None:
    spool = spool_of(session, collector.address, alive=True)
    process = start(session)
    assert collector.wait_until(lambda: bool(collector.last), TIMEOUT_S)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    assert collector.last[spool.spool_id] == spool.next_seq - 1
    assert not collector.final


def test_the_second_signal_stops(session: Path) -> None:
    spool_of(session, NOWHERE, alive=True)
    process = start(session)
    until((session / "shipper.json").exists)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    assert process.poll() is None  # nothing could be drained yet
    process.send_signal(signal.SIGTERM)
    assert process.wait(5.0) == 1
    assert (session / "0-0-1" / "meta.json").exists()


def test_a_broken_spool_does_not_keep_its_neighbour(session: Path, collector: FakeCollector) -> None:
    spool_of(session, collector.address).end()
    broken = spool_of(session, collector.address, rank=1)
    (broken.path / "control").write_bytes(b"rubbish")
    assert start(session).wait(TIMEOUT_S) == 1
    assert len(collector.final) == 1
    assert (broken.path / "meta.json").exists()
    assert "control" in json.loads((session / "shipper.json").read_text())["error"]


def test_a_shipper_that_reaches_nobody_leaves_the_spools_to_who_asks(session: Path) -> None:
    spool_of(session, NOWHERE).end()
    process = start(session, RANKMEM_SHIP_DRAIN_S="300")
    until(lambda: state_of(session) == WAITING)
    lock_fd = closing.ask_for(session, TIMEOUT_S)
    assert lock_fd is not None
    os.close(lock_fd)
    assert process.wait(TIMEOUT_S) == 1
    assert (session / "0-0-1" / "meta.json").exists()
    assert not closing.is_asked(session), "the next shipper is not asked"


def test_a_shipper_whose_rank_lives_does_not_leave(session: Path) -> None:
    spool_of(session, NOWHERE, alive=True)
    process = start(session)
    until(lambda: state_of(session) == WAITING)
    assert closing.ask_for(session, 0.5) is None
    assert process.poll() is None
    process.kill()
    process.wait()


def test_delivery_takes_over_from_a_shipper_that_reaches_nobody_and_leaves_no_folder(
    session: Path, collector: FakeCollector
) -> None:
    spool_of(session, NOWHERE).end()
    process = start(session, RANKMEM_SHIP_DRAIN_S="300")
    until(lambda: state_of(session) == WAITING)
    closing.close(session)
    report = deliver(session, collector.address, TIMEOUT_S)
    assert (report.spools_delivered, report.busy_sessions, report.errors) == (1, [], [])
    assert len(collector.final) == 1
    assert not session.exists()
    assert process.wait(TIMEOUT_S) == 1


def test_called_wrongly_it_says_what_it_wants() -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "rankmem_ship"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")


@pytest.mark.parametrize("level", ["spool", "session", "root"])
def test_delivery_takes_a_spool_a_session_or_the_root(
    session: Path, collector: FakeCollector, level: str
) -> None:
    for rank in range(2):
        spool_of(session, NOWHERE, rank=rank).end()
    directory = {"spool": session / "0-1-1", "session": session, "root": session.parent}[level]
    told: list[tuple[int, int]] = []
    report = deliver(directory, collector.address, TIMEOUT_S, lambda done, total: told.append((done, total)))
    expected = 1 if level == "spool" else 2
    assert (report.spools_delivered, report.spools_left, report.errors) == (expected, 0, [])
    assert len(collector.final) == expected
    assert told[-1][0] == told[-1][1] == report.records > 0


def test_delivery_of_a_living_rank_brings_what_is_written_and_leaves_the_rest(
    session: Path, collector: FakeCollector
) -> None:
    spool = spool_of(session, NOWHERE, alive=True)
    report = deliver(session, collector.address, TIMEOUT_S)
    assert (report.spools_delivered, report.spools_left) == (0, 1)
    assert collector.last[spool.spool_id] == spool.next_seq - 1
    spool.end()
    assert deliver(session, collector.address, TIMEOUT_S).spools_delivered == 1
    events = [row["seq"] for row in collector.rows("memory_event")]
    assert len(events) == len(set(events)) == collector.rows("rank_info")[-1]["events"]


def test_delivery_reports_an_aggregator_that_is_away_and_one_that_is_busy(session: Path) -> None:
    spool_of(session, NOWHERE).end()
    report = deliver(session, timeout_s=0.5)
    assert (report.spools_delivered, report.spools_left) == (0, 1)
    assert report.errors
    assert report.errors[0].code is Code.UNAVAILABLE
    lock_fd = take_lock(session)
    assert lock_fd is not None
    assert deliver(session, timeout_s=0.5).busy_sessions == [session]
    os.close(lock_fd)


def test_delivery_from_a_folder_without_a_spool_is_refused(tmp_path: Path) -> None:
    assert find_spools(tmp_path) == {}
    with pytest.raises(RankmemError, match="no spool"):
        deliver(tmp_path)


def test_a_spool_that_is_refused_for_ever_is_set_aside_kept_and_reported(
    session: Path, collector: FakeCollector
) -> None:
    spool_of(session, collector.address).end()

    def refuse(batch: Batch) -> IngestReply:
        refusal = Refusal(spool_id=batch.spool_id, batch_number=batch.batch_number, code="invalid")
        refusal.message = "a column is wrong"
        return IngestReply(refusal=refusal)

    collector._store = refuse  # type: ignore[method-assign]
    report = deliver(session, timeout_s=TIMEOUT_S)
    assert report.spools_left == 1
    assert [error.message for error in report.errors] == ["0-0-1 is set aside: a column is wrong"]
    assert report.spools_set_aside == [session / "set-aside" / "0-0-1"]
    assert (session / "set-aside" / "0-0-1" / "meta.json").exists()
    assert find_spools(session) == {}
    del collector._store  # type: ignore[attr-defined]
    again = deliver(session / "set-aside", timeout_s=TIMEOUT_S)
    assert (again.spools_delivered, again.spools_left) == (1, 0)
    assert len(collector.final) == 1
    assert not (session / "set-aside").exists()


def test_an_idle_shipper_costs_next_to_nothing(session: Path, collector: FakeCollector) -> None:
    spool_of(session, collector.address, alive=True)
    process = start(session)
    assert collector.wait_until(lambda: bool(collector.last), TIMEOUT_S)
    until(lambda: cpu_s(process.pid) > 0)
    before_s, began_s = cpu_s(process.pid), time.monotonic()
    time.sleep(4.0)
    share = (cpu_s(process.pid) - before_s) / (time.monotonic() - began_s)
    process.kill()
    process.wait()
    assert share < 0.05


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float(np.sum([int(fields[11]), int(fields[12])])) / os.sysconf("SC_CLK_TCK")
