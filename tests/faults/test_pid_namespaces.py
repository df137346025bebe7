"""Containers of one host that share the spools' folder and not their processes: nobody is cut off.

``unshare --pid`` makes what ``--ipc=host`` does between containers: each side's ``/proc`` knows its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from faults.ledger import check
from faults.scene import Rank, Scene
from main_job import RUN, environment, rows
from rankmem_agent.preload.drain import pending_records
from rankmem_agent.spool import life
from rankmem_agent.spool.election import is_shipping
from rankmem_agent.spool.folder import spools
from rankmem_ship.deliver import deliver
from waiting import DEADLINE_S, until

CONTAINER: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
EVENTS: Final = 100_000
HALF: Final = 50_000
TRAINS: Final = """
import pathlib, sys, time
import torch
own, other = (pathlib.Path(name) for name in sys.argv[1:])
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train():
    for _ in range(20):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
train()
own.touch()
while not other.exists():
    time.sleep(0.05)
train()
"""


def _refused() -> str:
    """Why no PID namespace can be made here; empty: it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run((*CONTAINER, "true"), capture_output=True, text=True, check=False)
    return tried.stderr.strip() or ("" if tried.returncode == 0 else f"unshare ended with {tried.returncode}")


_WHY: Final = _refused()
pytestmark = pytest.mark.skipif(bool(_WHY), reason=f"no PID namespace: {_WHY}")


def _go_on(rank: Rank) -> None:
    """Wakes a rank that pauses in a namespace of its own; seen from here it is unshare's child."""
    children = Path(f"/proc/{rank.process.pid}/task/{rank.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGUSR1)


def _check_all(scene: Scene) -> None:
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert (found.found, found.explained, found.duplicated) == (found.expected, 0, 0)


def test_who_ships_from_outside_leaves_a_rank_in_a_container_alone_while_it_lives(scene: Scene) -> None:
    scene.start_aggregator()
    pace = ("--events", str(EVENTS), "--seconds", "1", "--pause-at", str(HALF), "--no-shipper")
    rank = scene.start_rank(0, *pace, within=CONTAINER)
    until("it has written half", lambda: rank.count >= HALF)
    report = deliver(scene.session_dir(), timeout_s=DEADLINE_S)
    assert (report.spools_delivered, report.spools_left, report.errors) == (0, 1, [])
    assert report.records >= HALF
    _go_on(rank)
    assert rank.process.wait(DEADLINE_S) == 0
    report = deliver(scene.session_dir(), timeout_s=DEADLINE_S)
    assert (report.spools_delivered, report.spools_left, report.errors) == (1, 0, [])
    _check_all(scene)


def test_a_rank_that_is_killed_in_a_container_is_known_to_be_dead_outside(scene: Scene) -> None:
    scene.start_aggregator()
    rank = scene.start_rank(0, "--events", "1000", "--end", "hold", "--no-shipper", within=CONTAINER)
    (spool,) = spools(scene.session_dir())
    assert life.is_held(spool)
    until("it has written all", lambda: rank.count == 1000)
    rank.process.kill()
    rank.process.wait(DEADLINE_S)
    until("its lock is free", lambda: life.is_held(spool) is False)
    report = deliver(scene.session_dir(), timeout_s=DEADLINE_S)
    assert (report.spools_delivered, report.spools_left, report.errors) == (1, 0, [])
    _check_all(scene)


@pytest.mark.long
def test_a_shipper_in_one_container_ships_the_ranks_of_others_until_they_end(scene: Scene) -> None:
    """The shipper dies with the container in which it was started: a rank of another starts the next one."""
    scene.start_aggregator()
    pause = ("--events", str(EVENTS), "--seconds", "1", "--world-size", "3", "--pause-at", str(HALF))
    first = scene.start_rank(0, *pause, within=CONTAINER)
    others = [scene.start_rank(1, *pause, within=CONTAINER), scene.start_rank(2, *pause)]
    until("all have written half", lambda: all(rank.count >= HALF for rank in scene.ranks))
    until("all of it is acknowledged", lambda: pending_records(scene.session_dir()) == 0)
    assert len(spools(scene.session_dir())) == 3
    _go_on(first)
    assert first.process.wait(DEADLINE_S) == 0
    until("its shipper is gone with it", lambda: not is_shipping(scene.session_dir()))
    _go_on(others[0])
    others[1].process.send_signal(signal.SIGUSR1)
    assert [rank.process.wait(DEADLINE_S) for rank in others] == [0, 0]
    scene.deliver()
    _check_all(scene)


def test_trainings_in_two_containers_whose_processes_have_the_same_numbers_are_both_recorded(
    scene: Scene, tmp_path: Path
) -> None:
    """The real agent, from candidate to exit code; each ``rankmem run`` looks after the folder of both."""
    scene.start_aggregator()
    (tmp_path / "train.py").write_text(TRAINS)
    recorded = (*CONTAINER, *RUN, "--session", "one job", "--aggregator", scene.address, "--")
    command = (*recorded, sys.executable, "train.py")
    jobs = [
        subprocess.Popen(
            (*command, *marks), cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.DEVNULL
        )
        for marks in (("a", "b"), ("b", "a"))
    ]
    try:
        assert [job.wait(2 * DEADLINE_S) for job in jobs] == [0, 0]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    found = rows(tmp_path, "ranks", "--aggregator", scene.address)
    assert len({row["pid"] for row in found}) == 1, "the same number in both, or this test shows nothing"
    assert len(found) == 2
    for row in found:
        assert (row["complete"], row["events_lost"], row["exit_code"]) == (True, 0, 0)
        assert row["end_reason"] == "exit"
