"""A network that delays, cuts, swallows and doubles: nobody hangs, and every event is stored once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.ledger import check
from faults.proxy import Proxy, Wire
from faults.scene import Scene
from main_job import RUN, call
from rankmem_aggregator.query import remote
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import sender
from rankmem_ship.config import ShipConfig
from rankmem_ship.shipper import Shipper
from waiting import DEADLINE_S

EVENTS = 100_000
ROUNDS = int(os.environ.get("RANKMEM_FAULT_ROUNDS", "1"))


@pytest.fixture
def proxy(scene: Scene) -> Iterator[Proxy]:
    """Between ranks and aggregator."""
    with Proxy(scene.port) as between:
        scene.ship_to = between.address
        yield between


def run_reference(scene: Scene) -> None:
    """A rank, delivered through whatever the proxy does, and compared."""
    scene.start_rank(0, "--events", str(EVENTS), "--seconds", "1").process.wait(DEADLINE_S)
    scene.deliver()
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert (found.found, found.explained, found.duplicated) == (EVENTS, 0, 0)


@pytest.mark.long
def test_a_slow_network_costs_time_alone(scene: Scene, proxy: Proxy) -> None:
    proxy.wire_of = lambda number: Wire(delay_s=0.03)
    scene.start_aggregator()
    run_reference(scene)


def test_connections_cut_in_the_middle_of_messages_lose_and_double_nothing(
    scene: Scene, proxy: Proxy
) -> None:
    rng = random.Random(11)
    cut = {number: rng.randrange(1_000, 300_000) for number in range(5)}
    proxy.wire_of = lambda number: Wire(up_bytes_max=cut.get(number))
    scene.start_aggregator()
    run_reference(scene)
    assert proxy.num_cut >= 3


@pytest.mark.parametrize("bytes_max", [250_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_path_that_dies_within_some_bytes_of_every_connection_brings_everything(
    scene: Scene, proxy: Proxy, bytes_max: int
) -> None:
    """No batch of the usual size gets through, however often it is sent: smaller ones do."""
    proxy.wire_of = lambda number: Wire(up_bytes_max=bytes_max)
    events = EVENTS if bytes_max < 250_000 else EVENTS // 2
    scene.start_rank(0, "--events", str(events)).process.wait(DEADLINE_S)
    scene.start_aggregator()
    scene.deliver()
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert (found.found, found.explained, found.duplicated) == (events, 0, 0)
    assert proxy.num_cut >= 3


def test_acknowledgements_that_never_arrive_double_nothing(scene: Scene, proxy: Proxy) -> None:
    """What was sent is stored, the word of it is cut off: it is sent again, and known."""
    proxy.wire_of = lambda number: Wire(deaf_after=20_000 if number < 2 else None)
    scene.start_aggregator()
    run_reference(scene)
    assert proxy.num_cut >= 1


def test_a_stream_that_arrives_twice_is_stored_once(scene: Scene, proxy: Proxy) -> None:
    proxy.wire_of = lambda number: Wire(doubled=True)
    scene.start_aggregator()
    run_reference(scene)
    assert proxy.num_connections > 0


@pytest.mark.parametrize("swallows_after", [0, pytest.param(5_000, marks=pytest.mark.long)])
def test_a_path_that_swallows_everything_is_given_up_and_the_next_one_tried(
    scene: Scene, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, swallows_after: int
) -> None:
    """Before the first word, and in the middle: the shipper's patience is 2 s here instead of 30."""
    monkeypatch.setattr(sender, "SILENCE_S", 2.0)
    proxy.wire_of = lambda number: Wire(swallows_after=swallows_after if number == 0 else None)
    scene.start_aggregator()
    rank = scene.start_rank(0, "--events", str(EVENTS), "--no-shipper")
    rank.process.wait(DEADLINE_S)
    shipper = Shipper(scene.session_dir(), ShipConfig(grace_s=0.0))
    over_s = time.monotonic() + DEADLINE_S
    shipper.scan()
    while not shipper.is_done:
        assert time.monotonic() < over_s, shipper.error
        shipper.step()
        shipper.wait()
    shipper.close("done")
    assert proxy.num_connections >= 2  # more where a loaded machine is silent for so long
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert (found.found, found.explained, found.duplicated) == (EVENTS, 0, 0)


def flip_and_deliver(
    scene: Scene, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, *, connections: int, events: int
) -> None:
    """Bits of the first connections are flipped, both ways; the others are good. Everything arrives."""
    monkeypatch.setattr(sender, "SILENCE_S", 2.0)  # a flipped length lets both ends wait for more
    monkeypatch.setattr(sender, "BACKOFF_MAX_S", 0.2)
    rng = random.Random(connections)

    def wire(number: int) -> Wire:
        if number >= connections:
            return Wire()
        size = 10 ** rng.randrange(3, 7)  # of the connection's begin, where flips hurt most, or all of it
        up, down = ({rng.randrange(limit) for _ in range(3)} for limit in (8 * size, 8 * 2_000))
        return Wire(up_bits=frozenset(up), down_bits=frozenset(down))

    proxy.wire_of = wire
    scene.start_aggregator()
    scene.start_rank(0, "--events", str(events), "--no-shipper").process.wait(DEADLINE_S)
    shipper = Shipper(scene.session_dir(), ShipConfig(grace_s=0.0))
    over_s = time.monotonic() + DEADLINE_S + 3 * connections
    shipper.scan()
    while not shipper.is_done:
        assert time.monotonic() < over_s, shipper.error
        shipper.step()
        shipper.wait()
    assert shipper.failures == []
    shipper.close("done")
    assert proxy.num_flipped >= connections
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert (found.found, found.explained, found.duplicated) == (events, 0, 0)


def test_of_flipped_bits_nothing_is_stored_changed_and_everything_arrives(
    scene: Scene, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_and_deliver(scene, proxy, monkeypatch, connections=8, events=EVENTS)


@pytest.mark.long
def test_of_many_flipped_bits_nothing_is_stored_changed_and_everything_arrives(
    scene: Scene, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_and_deliver(scene, proxy, monkeypatch, connections=150, events=10 * EVENTS)


def test_a_job_whose_aggregator_is_swallowed_ends_when_it_said_it_would(
    scene: Scene, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.wire_of = lambda number: Wire(swallows_after=0)
    scene.start_aggregator()
    script = "import torch; torch.ones(1000).sum()"
    run = (*RUN, "--aggregator", proxy.address, "--drain-s", "1", "--")
    began_s = time.monotonic()
    done = call((*run, sys.executable, "-c", script), tmp_path)
    assert done.returncode == 0
    assert "Try: rankmem ship " in done.stderr
    assert "no summary" in done.stderr
    assert time.monotonic() - began_s < DEADLINE_S


@pytest.mark.skipif(ROUNDS < 2, reason="takes a minute: gRPC's pings; RANKMEM_FAULT_ROUNDS=2 runs it")
def test_a_question_to_an_aggregator_that_has_stopped_is_given_up(
    scene: Scene,
) -> None:
    """Its kernel takes the connection, its process says nothing: the reader is told and waits no longer."""
    scene.start_aggregator()
    with remote.RemoteQueries(scene.address) as queries:
        assert queries.sql("SELECT 1 AS one").num_rows == 1
        assert scene.aggregator is not None
        subprocess.run(["kill", "-STOP", str(scene.aggregator.pid)], check=True)
        with pytest.raises(RankmemError) as caught:
            queries.sql("SELECT 2 AS two")
    assert caught.value.code is Code.UNAVAILABLE
