"""What happens on disks that are full: run as a process that has mounts of its own.

``python full_disk.py SCENARIO FOLDER`` within ``unshare --map-root-user --mount``: a small tmpfs is mounted
on the spools' or the database's folder and filled; in the end it gets room again. Ends with an AssertionError
where something is not as it should be.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import duckdb
import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from faults.ledger import Totals, check
from faults.scene import Scene, opened
from main_job import RANKMEM, RUN, call
from rankmem_agent.spool.folder import spools
from rankmem_ship.spool_reader.segments import CONTROL_DTYPE
from waiting import until

SEGMENT: Final = 65_536
"""Records."""
FILLS: Final = int(os.environ.get("RANKMEM_FILLS", "12"))
"""Of the disk that is full and empty in turns."""
TRAINING: Final = "import torch; torch.ones(1000).sum(); print('trained')"


def mount(folder: Path, size_mib: int) -> None:
    """A tmpfs of that size on the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0700", "tmpfs", str(folder)], check=True
    )


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


def spool_full(scene: Scene) -> None:
    """The spools' disk is full: the rank goes on, its losses are gap rows, and it records again later.

    The disk stays full by other people's files the whole time: room comes back only as what is stored is
    deleted, which takes a checkpoint, which takes room.
    """
    root = scene.session_dir().parent
    mount(root, 18)
    scene.start_aggregator()
    pause = ("--pause-at", str(5 * SEGMENT))
    rank = scene.start_rank(0, "--events", str(8 * SEGMENT), "--seconds", "1.5", *pause)
    session_dir = scene.session_dir()
    until(
        "the shipper is there", lambda: len(scene.shippers()) > 0 and (session_dir / "shipper.json").exists()
    )
    scene.kill_aggregator()
    until("the disk is full", lambda: rank.count >= 5 * SEGMENT)
    filler = fill(root)
    scene.start_aggregator()
    (spool,) = spools(session_dir)
    until("all segments are stored and deleted", lambda: acknowledged(spool) >= 5 * SEGMENT)
    until("there are new ones", lambda: (spool / "checkpoint").exists())
    rank.process.send_signal(signal.SIGUSR1)
    assert rank.process.wait(60) == 0  # it was not held up, and ends as it would
    scene.deliver()
    assert filler.exists()
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert found.reasons == {"spool_full"}
    assert 0 < found.explained < found.expected - SEGMENT
    last = last_event(scene)
    assert last == 8 * SEGMENT, f"nothing was recorded after the disk had been full: {last}"


def spool_full_at_once(scene: Scene) -> None:
    """There is never room for a segment: the rank runs, and the database says that all of it is missing."""
    root = scene.session_dir().parent
    mount(root, 1)
    scene.start_aggregator()
    rank = scene.start_rank(0, "--events", "1000")
    assert rank.process.wait(60) == 0
    scene.deliver()
    scene.close_aggregator()
    found = check(scene.database, scene.written())
    assert (found.found, found.explained, found.reasons) == (0, 1000, {"spool_full"})


def database_full(scene: Scene) -> None:
    """The database's disk is full: health says so, batches wait in the spools, nothing is lost."""
    mount(scene.database.parent, 64)
    scene.start_aggregator()
    filler = fill(scene.database.parent)
    ranks = [scene.start_rank(rank, "--events", "30000", "--world-size", "2") for rank in range(2)]
    for rank in ranks:
        assert rank.process.wait(60) == 0
    until(
        "the aggregator is not serving", lambda: health(scene) == health_pb2.HealthCheckResponse.NOT_SERVING
    )
    assert len(spools(scene.session_dir())) == 2
    filler.unlink()
    scene.deliver()
    until("the aggregator is serving", lambda: health(scene) == health_pb2.HealthCheckResponse.SERVING)
    scene.close_aggregator()
    whole(check(scene.database, scene.written()))


def database_fills(scene: Scene) -> None:
    """It becomes full while ranks write, an aggregator is killed on it, and the next one finds its way."""
    mount(scene.database.parent, 200)
    scene.start_aggregator()
    for rank in range(2):
        scene.start_rank(rank, "--events", str(SEGMENT), "--seconds", "2", "--world-size", "2")
    until("rows are stored", lambda: scene.database.stat().st_size + wal_bytes(scene) > 2 << 20)
    filler = fill(scene.database.parent)
    for rank in scene.ranks:
        assert rank.process.wait(60) == 0
    scene.kill_aggregator()
    filler.unlink()
    scene.start_aggregator()
    scene.deliver()
    scene.close_aggregator()
    whole(check(scene.database, scene.written()))


def database_flaps(scene: Scene) -> None:
    """It is full and empty again in turns, at any moment of a commit: the aggregator never ends."""
    mount(scene.database.parent, 120)
    scene.start_aggregator()
    ranks = [
        scene.start_rank(rank, "--events", "120000", "--seconds", str(FILLS / 4), "--world-size", "2")
        for rank in range(2)
    ]
    chance = random.Random(FILLS)
    for _ in range(FILLS):
        filler = fill(scene.database.parent)
        time.sleep(chance.uniform(0.0, 0.15))
        filler.unlink()
        time.sleep(chance.uniform(0.0, 0.4))
    for rank in ranks:
        assert rank.process.wait(60 + FILLS) == 0
    scene.deliver()
    scene.close_aggregator()  # ends with 0: it has never ended before
    whole(check(scene.database, scene.written()))


def database_full_and_killed(scene: Scene) -> None:
    """`rankmem serve` is killed on a full disk: it is up again by itself, when there is room at least."""
    mount(scene.database.parent, 120)
    scene.start_aggregator(kept=True)
    for rank in range(2):
        scene.start_rank(rank, "--events", str(SEGMENT), "--seconds", "2", "--world-size", "2")
    until("rows are stored", lambda: scene.database.stat().st_size + wal_bytes(scene) > 2 << 20)
    filler = fill(scene.database.parent)
    killed = 0
    for _ in range(3):
        killed += scene.kill_worker()
        time.sleep(1.0)
    assert killed > 0
    for rank in scene.ranks:
        assert rank.process.wait(60) == 0
    filler.unlink()
    scene.deliver()
    scene.close_aggregator()
    whole(check(scene.database, scene.written()))


def read_only(scene: Scene) -> None:
    """Folders that cannot be written are named, nothing is stored by half, and it works once they can be."""
    root = scene.session_dir().parent
    mount(root, 30)
    mount(scene.database.parent, 64)
    scene.start_rank(0, "--events", "1000", "--no-shipper").process.wait(60)
    remount(root, "ro")
    done = call((*RANKMEM, "ship", str(root), "--db", str(scene.database)), scene.folder)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr, done.stderr
    assert "Try: copy" in done.stderr
    training = call((*RUN, "--", sys.executable, "-c", TRAINING), scene.folder, RANKMEM_SPOOL_DIR=str(root))
    assert (training.returncode, training.stdout) == (0, "trained\n"), training.stderr
    said = [line for line in training.stderr.splitlines() if "read-only" in line.lower()]
    assert ["the agent is off" in line for line in said] == [True, False], training.stderr
    assert said[1].startswith("rank 0: not recorded ("), training.stderr
    remount(root, "rw")
    remount(scene.database.parent, "ro")
    done = call((*RANKMEM, "ship", str(root), "--db", str(scene.database)), scene.folder)
    assert done.returncode == 1
    assert "Error: " in done.stderr
    assert "unexpected" not in done.stderr, done.stderr
    assert str(scene.database) in done.stderr
    assert len(spools(scene.session_dir())) == 1
    remount(scene.database.parent, "rw")
    done = call((*RANKMEM, "ship", str(root), "--db", str(scene.database)), scene.folder)
    assert done.returncode == 0, done.stderr
    whole(check(scene.database, scene.written()))


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def whole(found: Totals) -> None:
    """Everything is there."""
    assert (found.found, found.explained, found.duplicated) == (found.expected, 0, 0), found


def wal_bytes(scene: Scene) -> int:
    log = scene.database.with_name(scene.database.name + ".wal")
    return log.stat().st_size if log.exists() else 0


def last_event(scene: Scene) -> int:
    """How far the rank's events reach, by the address of the last alloc."""
    from faults.reference import BASE, LIVE, STRIDE

    with duckdb.connect(scene.database, read_only=True) as connection:
        ((block,),) = connection.sql(
            f"SELECT (max(address) - {BASE}) // {STRIDE} FROM memory_event"
        ).fetchall()
    return LIVE + 2 * (int(block) - LIVE) + 2


def acknowledged(spool: Path) -> int:
    """Records that the shipper has heard to be stored."""
    control = np.frombuffer((spool / "control").read_bytes(), CONTROL_DTYPE, 1)
    return int(control["acked_seq"][0])


def health(scene: Scene) -> int:
    with grpc.insecure_channel(scene.address) as channel:
        request = health_pb2.HealthCheckRequest(service="rankmem.v1.Collector")
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status)


SCENARIOS: Final = {
    "spool_full": spool_full,
    "spool_full_at_once": spool_full_at_once,
    "database_full": database_full,
    "database_fills": database_fills,
    "database_flaps": database_flaps,
    "database_full_and_killed": database_full_and_killed,
    "read_only": read_only,
}

if __name__ == "__main__":
    signal.alarm(240 + 5 * FILLS)
    with opened(Path(sys.argv[2])) as scene:
        SCENARIOS[sys.argv[1]](scene)
    os._exit(0)
