"""Two aggregators of a lake are killed while each spool has two shippers: all is stored, once."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import grpc
import pytest

import lake_serving
from faults.scene import free_port
from ingest_client import IngestClient
from lake_serving import Log, check_rows, recorded_logs
from rankmem_aggregator.lake.check import check_lake
from waiting import DEADLINE_S, until

LOGS = 3
IN_VAIN = (AssertionError, OSError, grpc.RpcError)
"""Of a client whose aggregator was killed."""


class Killed:
    """An aggregator's process, which is started again on its port."""

    def __init__(self, folder: Path, lake: str, name: str, environment: dict[str, str]) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / f"{name}.log"
        self._environment = environment | {
            "RANKMEM_SERVE_LAKE": lake,
            "RANKMEM_LISTEN": self.address,
            "RANKMEM_SERVE_LAKE_INTERVAL_S": "0.3",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "rankmem_aggregator"), env=self._environment, stdout=log, stderr=log
            )

    def await_ready(self) -> None:
        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()
            host, _, port = self.address.rpartition(":")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
                return True
            return False

        until("the aggregator listens", answers)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)


class Sending:
    """One of two senders of a log: over and over, from what is stored by then.

    Args:
        log: what it sends.
        addresses: of two aggregators: it prefers the first, the log's other sender the second.
        allowed: up to which share of the log, as it is now.
        seed: of its random numbers.
    """

    def __init__(self, log: Log, addresses: list[str], allowed: list[float], seed: int) -> None:
        self._log, self._addresses, self._allowed = log, addresses, allowed
        self._chance = random.Random(seed)
        self.is_done = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.is_done:
            with contextlib.suppress(*IN_VAIN):
                self._send_some()
            time.sleep(self._chance.uniform(0, 0.1))

    def _send_some(self) -> None:
        batches = self._log.batches
        with IngestClient(
            self._chance.choice(self._addresses), receipts=self._chance.random() < 0.5
        ) as client:
            client.send(open_spool=self._log.opening)
            reply = client.reply()
            assert reply.WhichOneof("body") == "spool_state", reply
            stored = reply.spool_state.last_sequence
            self.is_done = stored == batches[-1].sequence_last
            most = int(self._allowed[0] * len(batches)) + 1
            waiting = [batch for batch in batches[:most] if batch.sequence_first > stored]
            assert not waiting or waiting[0].sequence_first == stored + 1
            some = waiting[: self._chance.randrange(1, 6)]
            for batch in some:
                client.send(batch=batch)
            for _ in some:
                reply = client.reply()
                if reply.WhichOneof("body") == "refusal":
                    assert reply.refusal.code in ("conflict", "unavailable"), reply
                    return


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Log]:
    with patch.object(lake_serving, "BATCH_RECORDS", 20):
        return recorded_logs(tmp_path_factory.mktemp("logs"), ranks=LOGS, attempts=1, calls=100)


def kill_again_and_again(
    folder: Path, lake: str, logs: list[Log], kills: int, environment: dict[str, str]
) -> Iterator[str]:
    """Sends the logs while aggregators die; yields what these logged."""
    chance = random.Random(kills)
    both = [Killed(folder, lake, name, environment) for name in ("first", "second")]
    addresses = [aggregator.address for aggregator in both]
    for aggregator in both:
        aggregator.start()
    for aggregator in both:
        aggregator.await_ready()
    allowed = [0.0]
    sending = [Sending(log, addresses, allowed, seed) for seed, log in enumerate(logs)]
    sending += [Sending(log, addresses[::-1], allowed, 100 + seed) for seed, log in enumerate(logs)]
    try:
        for number in range(kills):
            time.sleep(chance.uniform(0, 3.0))  # while both live, two senders may get in each other's way
            victim = chance.choice(both)
            victim.kill()
            time.sleep(chance.uniform(0, 0.2))
            victim.start()
            victim.await_ready()
            allowed[0] = (number + 1) / kills  # both live: now
        until("all is stored", lambda: all(one.is_done for one in sending), 4 * DEADLINE_S)
    finally:
        for one in sending:
            one.is_done = True
        for one in sending:
            one.thread.join(DEADLINE_S)
        for aggregator in both:
            aggregator.kill()
    yield from (aggregator.log.read_text() for aggregator in both)


@pytest.mark.parametrize(
    ("rounds", "kills"), [(1, 3), pytest.param(10, 10, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_two_aggregators_that_are_killed_store_all_once(
    tmp_path: Path, logs: list[Log], rounds: int, kills: int
) -> None:
    said = ""
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        lake = f"lake:{folder}/lake"
        said += "".join(kill_again_and_again(folder, lake, logs, kills, dict(os.environ)))
        check_rows(lake, logs)
        assert check_lake(lake).faults == ()
    assert "is stored by another aggregator" in said, "the senders were never in each other's way"
