"""Real trainings with the real tap: restarted, aborted, left by their shipper, piped into a command."""

from __future__ import annotations

import os
import shlex
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from faults.numbered_train import BLOCKS, HELD, size_of
from faults.scene import Scene
from main_job import RANKMEM, RUN, TORCHRUN, call, environment, rows
from waiting import DEADLINE_S, until

OUTLIVES: Final = """
import pathlib, time, torch
weight = torch.nn.Parameter(torch.ones(3))
weight.sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
pathlib.Path("up").touch()
while not pathlib.Path("stop").exists():
    time.sleep(0.05)
"""
"""A rank that goes on after the command that started it, until it is told to stop."""
TRAIN = str(Path(__file__).with_name("numbered_train.py"))
OURS = f"size_bytes % 16 = 3 AND size_bytes BETWEEN {size_of(0)} AND {size_of(BLOCKS)}"


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of three ranks and three attempts, recorded."""
    folder = tmp_path_factory.mktemp("elastic")
    torchrun = (*TORCHRUN, "--nproc-per-node", "3", "--max-restarts", "2", "--monitor-interval", "0.1")
    done = call((*RUN, "--", *torchrun, TRAIN, str(folder), "elastic"), folder)
    assert done.returncode == 0, done.stderr
    assert "never reported: rank 2" in done.stderr
    return folder


def asked(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(folder / "rankmem.duckdb", read_only=True) as connection:
        return connection.sql(query).fetchall()


def test_attempts_are_told_apart_and_how_each_rank_ended(restarted: Path) -> None:
    found = {(row["attempt"], row["rank"]): row["state"] for row in rows(restarted, "ranks")}
    assert found == {
        (0, 0): "killed",
        (0, 1): "killed",
        (0, 2): "never reported",
        (1, 0): "killed",
        (1, 1): "killed",
        (1, 2): "killed",
        (2, 0): "exit",
        (2, 1): "exit",
        (2, 2): "exit",
    }


def test_every_numbered_block_of_every_attempt_is_there_once_and_in_order(restarted: Path) -> None:
    events = asked(
        restarted,
        f"SELECT attempt, rank, list(size_bytes ORDER BY seq) FROM memory_event "
        f"WHERE action = 'alloc' AND {OURS} GROUP BY ALL ORDER BY ALL",
    )
    expected = [size_of(block) for block in range(BLOCKS)]
    ran = [(attempt, rank) for attempt in range(3) for rank in range(3) if (attempt, rank) != (0, 2)]
    assert [(attempt, rank) for attempt, rank, _ in events] == ran
    for attempt, rank, sizes in events:
        assert sizes == expected, (attempt, rank)
    lives = asked(
        restarted,
        f"SELECT attempt, count(*), count(freed_seq) FROM allocation WHERE {OURS} AND rank = 0 "
        "GROUP BY ALL ORDER BY ALL",
    )
    # Who ends by itself frees at its end what it may; who is killed takes it along.
    assert [(attempt, count, count - freed) for attempt, count, freed in lives[:2]] == [
        (attempt, BLOCKS, 20 * HELD[attempt]) for attempt in range(2)
    ]


def test_peaks_are_those_of_each_attempt_and_the_highest_over_all(restarted: Path) -> None:
    naive = asked(
        restarted,
        """
        SELECT attempt, rank, max(bytes)::BIGINT FROM (
            SELECT attempt, rank, sum(CASE action WHEN 'alloc' THEN size_bytes ELSE -size_bytes END)
                OVER (PARTITION BY attempt, rank ORDER BY seq) AS bytes
            FROM memory_event
        ) GROUP BY ALL ORDER BY ALL
        """,
    )
    told = asked(restarted, "SELECT attempt, rank, peak_requested_bytes FROM peak_by_rank ORDER BY ALL")
    assert told == naive
    highest = asked(restarted, "SELECT attempt, rank FROM peak_by_rank WHERE is_rank_peak ORDER BY ALL")
    assert highest == [(1, 0), (1, 1), (1, 2)]


def test_a_shipper_that_is_killed_is_started_again_by_the_rank_that_trains(
    scene: Scene, tmp_path: Path
) -> None:
    scene.start_aggregator()
    spools = tmp_path / "spool-host-a"
    variables = {"RANKMEM_SPOOL_DIR": str(spools), "RANKMEM_AGGREGATOR": scene.address}
    training = subprocess.Popen(
        (sys.executable, "-m", "rankmem_agent", TRAIN, str(tmp_path), "steps"),
        env=environment(tmp_path, **variables, RANKMEM_DRAIN_S="30"),
    )
    try:
        until("it trains", (tmp_path / "ready-0-0").exists)
        until("a shipper is at work", lambda: bool(scene.shippers()))
        for _ in range(2):
            (killed,) = scene.shippers()
            os.kill(killed, signal.SIGKILL)
            until("another one is", lambda: scene.shippers() not in ([], [killed]))  # noqa: B023
        assert training.poll() is None
        (tmp_path / "enough").touch()
        assert training.wait(DEADLINE_S) == 0
    finally:
        training.kill()
        training.wait()
    scene.close_aggregator()
    with duckdb.connect(scene.database, read_only=True) as connection:
        ((events, complete, reason),) = connection.sql(
            "SELECT events, complete, end_reason FROM rank_info"
        ).fetchall()
        ((stored, distinct),) = connection.sql(
            "SELECT count(*), count(DISTINCT seq) FROM memory_event"
        ).fetchall()
    assert (events, complete, reason) == (stored, True, "exit")
    assert stored == distinct > 0


def test_after_sigkill_every_block_up_to_the_kill_is_there_with_its_free(
    scene: Scene, tmp_path: Path
) -> None:
    """Trainer and shipper are killed at once; nothing but the mapped pages of the spool is left of them."""
    scene.start_aggregator()
    spools = tmp_path / "spool-host-a"
    variables = {"RANKMEM_SPOOL_DIR": str(spools), "RANKMEM_AGGREGATOR": scene.address}
    training = subprocess.Popen(
        (sys.executable, "-m", "rankmem_agent", TRAIN, str(tmp_path), "endless"),
        env=environment(tmp_path, **variables),
    )
    until("it is under way", lambda: witnessed(tmp_path) > 20_000)
    training.kill()
    scene.kill_shippers()
    training.wait(DEADLINE_S)
    until("the shipper is gone", lambda: not scene.shippers())
    done = call((*RANKMEM, "ship", str(spools)), tmp_path)
    assert done.returncode == 0, done.stderr
    scene.close_aggregator()
    with duckdb.connect(scene.database, read_only=True) as connection:
        sizes = connection.sql(
            "SELECT list(size_bytes ORDER BY seq), count(freed_seq) FROM ("
            "SELECT size_bytes, allocation_id AS seq, freed_seq FROM allocation "
            f"WHERE size_bytes % 16 = 3 AND size_bytes >= {size_of(0)})"
        ).fetchall()
        ((gaps,),) = connection.sql("SELECT count(*) FROM gap WHERE why != 'torn'").fetchall()
    ((found, freed),) = sizes
    count = witnessed(tmp_path)
    assert found == [size_of(block) for block in range(len(found))]
    assert count <= len(found) <= count + 1
    assert count <= freed <= len(found)
    assert gaps == 0


def witnessed(folder: Path) -> int:
    try:
        return int(struct.unpack("<Q", (folder / "witness").read_bytes())[0])
    except (FileNotFoundError, struct.error):
        return 0


def test_a_training_outlives_the_command_that_recorded_it(scene: Scene, tmp_path: Path) -> None:
    """``rankmem run`` is killed, and its embedded aggregator with it: what was recorded is on disk."""
    spools = tmp_path / "spool-host-a"
    variables = {"RANKMEM_SPOOL_DIR": str(spools), "RANKMEM_SHIP_DRAIN_S": "0.5"}
    with subprocess.Popen(
        (*RUN, "--", sys.executable, TRAIN, str(tmp_path), "steps"),
        cwd=tmp_path,
        env=environment(tmp_path, **variables),
    ) as run:
        until("it trains", (tmp_path / "ready-0-0").exists)
        until("a shipper is at work", lambda: bool(scene.shippers()))
        run.kill()
    (tmp_path / "ready-0-0").unlink()
    until("it trains on", (tmp_path / "ready-0-0").exists)
    (tmp_path / "enough").touch()
    until("the shipper has given up", lambda: not scene.shippers())
    done = call((*RANKMEM, "ship", str(spools), "--db", "rankmem.duckdb"), tmp_path)
    assert done.returncode == 0, done.stderr
    ((complete, reason),) = asked(tmp_path, "SELECT complete, end_reason FROM rank_info")
    assert (complete, reason) == (True, "exit")
    ((stored, distinct),) = asked(tmp_path, "SELECT count(*), count(DISTINCT seq) FROM memory_event")
    assert stored == distinct > 0


def test_an_aggregator_that_is_killed_beside_its_training_is_back_and_has_everything(tmp_path: Path) -> None:
    with subprocess.Popen(
        (*RUN, "--", sys.executable, TRAIN, str(tmp_path), "steps"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        until("it trains", (tmp_path / "ready-0-0").exists)
        for pid in aggregators_of(run.pid):
            os.kill(pid, signal.SIGKILL)
        (tmp_path / "ready-0-0").unlink()
        until("it trains on", (tmp_path / "ready-0-0").exists)
        (tmp_path / "enough").touch()
        assert run.stderr is not None
        said = run.stderr.read()
    assert run.returncode == 0, said
    assert "rankmem: the aggregator ended (SIGKILL); it is restarted" in said
    assert "rankmem: the aggregator is back at 127.0.0.1:" in said
    ((complete, reason),) = asked(tmp_path, "SELECT complete, end_reason FROM rank_info")
    assert (complete, reason) == (True, "exit")
    ((stored, distinct),) = asked(tmp_path, "SELECT count(*), count(DISTINCT seq) FROM memory_event")
    assert stored == distinct > 0


def aggregators_of(pid: int) -> list[int]:
    """The aggregator's process below a command: one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [
        int(child)
        for child in children
        if b"rankmem_aggregator.supervision.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    assert len(found) == 1
    return found


def test_a_command_piped_after_run_ends_with_the_job_though_the_shipper_goes_on(
    scene: Scene, tmp_path: Path
) -> None:
    training = tmp_path / "outlives.py"
    training.write_text(OUTLIVES)
    trains = shlex.join((sys.executable, str(training)))
    command = f"{trains} >/dev/null 2>&1 & until [ -e up ]; do sleep 0.1; done; echo trained"
    run = (*RUN, "--aggregator", "127.0.0.1:9", "--drain-s", "0", "--", "sh", "-c", command)
    variables = {"RANKMEM_SPOOL_DIR": str(tmp_path / "spool"), "RANKMEM_SHIP_DRAIN_S": "120"}
    try:
        piped = subprocess.run(
            f"{shlex.join(run)} 2>&1 | cat",
            shell=True,
            cwd=tmp_path,
            env=environment(tmp_path, **variables),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        assert "trained" in piped.stdout
        assert scene.shippers(), "a rank lives, so it waits for an aggregator, and holds no pipe"
    finally:
        (tmp_path / "stop").touch()
