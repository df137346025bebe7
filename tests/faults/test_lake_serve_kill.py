"""Two aggregators of a lake are killed while each spool has two shippers: all is stored, once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
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
from ingest_client import IngestClient
from lake_serving import Log, check_rows, recorded_logs, send_rest
from ports import free_port
from rankmem_aggregator.lake.check import check_lake
from seaweed import BUCKET, needs_weed, object_store, reached_at
from waiting import DEADLINE_S, until

LOGS = 3
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]
IN_VAIN = (AssertionError, OSError, grpc.RpcError)
"""Of a client whose aggregator was killed."""


class Killed:
    """An aggregator's process, which is started again on its port."""

    def __init__(self, folder: Path, lake: str, name: str, interval_s: float = 0.3) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / f"{name}.log"
        self._environment = dict(os.environ) | {
            "RANKMEM_SERVE_LAKE": lake,
            "RANKMEM_LISTEN": self.address,
            "RANKMEM_SERVE_LAKE_INTERVAL_S": str(interval_s),
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

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


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


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of an object store, which processes of this one reach."""
    with object_store(tmp_path_factory.mktemp("weed")) as (address, _), reached_at(f"http://{address}"):
        yield f"s3://{BUCKET}"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where lakes may be."""
    return f"lake:{tmp_path}" if request.param == "folder" else request.getfixturevalue("bucket")


@contextlib.contextmanager
def two(folder: Path, lake: str, **options: float) -> Iterator[list[Killed]]:
    """Two aggregators of a lake, which listen."""
    both = [Killed(folder, lake, name, **options) for name in ("first", "second")]
    for aggregator in both:
        aggregator.start()
    try:
        for aggregator in both:
            aggregator.await_ready()
        yield both
    finally:
        for aggregator in both:
            aggregator.kill()


def kill_again_and_again(both: list[Killed], logs: list[Log], kills: int) -> Iterator[str]:
    """Sends the logs while aggregators die; yields what these logged."""
    chance = random.Random(kills)
    addresses = [aggregator.address for aggregator in both]
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
    yield from (aggregator.log.read_text() for aggregator in both)


@pytest.mark.parametrize(
    ("place", "rounds", "kills"),
    [
        ("folder", 1, 3),
        pytest.param("folder", 10, 10, marks=LONG),
        pytest.param("store", 3, 3, marks=[*LONG, needs_weed]),
    ],
    indirect=["place"],
)
def test_two_aggregators_that_are_killed_store_all_once(
    tmp_path: Path, place: str, logs: list[Log], rounds: int, kills: int
) -> None:
    said = ""
    for number in range(rounds):
        lake = f"{place}/killed-{kills}-{number}"
        with two(tmp_path, lake) as both:
            said += "".join(kill_again_and_again(both, logs, kills))
        check_rows(lake, logs)
        assert check_lake(lake).faults == ()
    assert "is stored by another aggregator" in said, "the senders were never in each other's way"


@pytest.mark.parametrize("place", ["folder", pytest.param("store", marks=needs_weed)], indirect=True)
@pytest.mark.parametrize("pauses", [3, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_an_aggregator_that_is_paused_while_another_stores_its_spools_stores_nothing_twice(
    tmp_path: Path, place: str, logs: list[Log], pauses: int
) -> None:
    """It is paused before its commit or within it, and goes on with that when others have stored more."""
    chance, refused = random.Random(pauses), 0
    lake, interval_s = f"{place}/paused-{pauses}", 1.0
    with two(tmp_path, lake, interval_s=interval_s) as both:
        for number in range(pauses):
            victim, other = both if number % 2 else both[::-1]
            most = {log.opening.spool_id: (number + 1) * len(log.batches) // pauses for log in logs}
            with contextlib.ExitStack() as opened:
                clients = []
                for log in logs:
                    client = opened.enter_context(IngestClient(victim.address, receipts=True))
                    client.send(open_spool=log.opening)
                    stored = client.reply().spool_state.last_sequence
                    for batch in log.batches[: most[log.opening.spool_id] - 1]:
                        if batch.sequence_first > stored:
                            client.send(batch=batch)
                    clients.append(client)
                time.sleep(chance.uniform(0, 1.2 * interval_s) if number else 0)
                with victim.paused():
                    for log in logs:
                        send_rest(other.address, log, most[log.opening.spool_id])
                for client in clients:
                    for reply in client.end():
                        if reply.WhichOneof("body") == "refusal":
                            assert reply.refusal.code == "conflict", reply
                            refused += 1
    check_rows(lake, logs)
    assert check_lake(lake).faults == ()
    assert refused, "the paused aggregator was never about to store what another had"
