"""Imports are killed, or stopped for a while, beside an aggregator that receives the same session."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lake_serving import SESSION, Log, check_rows, recorded_logs, send, send_rest, serving
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.server.aggregator import open as open_aggregator
from waiting import DEADLINE_S, until

REFUSED = (f"has session {SESSION} from serve:", f"has changed session {SESSION}")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Log]:
    return recorded_logs(tmp_path_factory.mktemp("logs"), ranks=2, attempts=1)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, logs: list[Log]) -> Path:
    """Has received the first half of each log."""
    path = tmp_path_factory.mktemp("database") / "job.duckdb"
    with open_aggregator(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as aggregator:
        send(aggregator.address, [Log(log.opening, log.batches[: len(log.batches) // 2]) for log in logs])
    return path


def start(database: Path, lake: Path) -> subprocess.Popen[str]:
    """The import, in a process of its own."""
    command = [sys.executable, "-m", "rankmem_cli", "lake", "import", str(database), "--lake", str(lake)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check_ended(process: subprocess.Popen[str]) -> bool:
    """Whether an import was done; False: it was refused, since the aggregator had stored records."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 or any(told in output for told in REFUSED), output
    return process.returncode == 0


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_whichever_is_killed_or_first_each_record_counts_once(
    tmp_path: Path, logs: list[Log], database: Path, rounds: int
) -> None:
    chance = random.Random(rounds)
    began = time.monotonic()
    assert check_ended(start(database, tmp_path / "alone"))
    alone_s = time.monotonic() - began
    for number in range(rounds):
        lake = tmp_path / str(number)
        with serving(lake, lake_interval_s=chance.choice([0.05, alone_s])) as aggregator:
            sending = [threading.Thread(target=send_rest, args=(aggregator.address, log)) for log in logs]
            killed = start(database, lake)
            time.sleep(chance.uniform(0.3, 1.0) * alone_s)
            for thread in sending:
                thread.start()
            time.sleep(chance.uniform(0, 0.3) * alone_s)
            killed.kill()
            killed.communicate()
            again = start(database, lake)
            for thread in sending:
                thread.join(DEADLINE_S)
            check_ended(again)
            check_ended(start(database, lake))
        check_rows(f"lake:{lake}", logs)
        assert check_lake(str(lake)).faults == ()


def test_an_import_that_was_stopped_while_the_aggregator_stored_is_refused(
    tmp_path: Path, logs: list[Log], database: Path
) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator:
        zombie = start(database, lake)
        written = lake / "memory_event" / "_delta_log"
        until("its files are in the tables' logs", lambda: any(written.glob("*1.json")))
        os.kill(zombie.pid, signal.SIGSTOP)
        try:
            for log in logs:
                send_rest(aggregator.address, log)
        finally:
            os.kill(zombie.pid, signal.SIGCONT)
        assert not check_ended(zombie)
    check_rows(f"lake:{lake}", logs)
