"""Open MPI's and MPICH's own launchers, behind ``rankmem run`` and in front of it.

Run where Debian's packages openmpi-bin and mpich are installed, and skipped elsewhere; the launchers'
variables alone are in test_one_run_a_rank.py.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from main_job import RANKMEM, call, rows
from ports import free_port

TASK_TRAIN = (sys.executable, str(Path(__file__).with_name("task_train.py")))
RANKS = 2
LAUNCHERS = (
    ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS)),
    ("mpiexec.hydra", "-n", str(RANKS)),
)

pytestmark = pytest.mark.long


@pytest.mark.parametrize("is_in_front", [False, True])
@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher[0])
def test_each_rank_is_recorded_once(launcher: tuple[str, ...], is_in_front: bool, tmp_path: Path) -> None:
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    run = (*RANKMEM, "run", "--db", "job.duckdb", "--no-diagnose", "--")
    command = (*launcher, *run, *TASK_TRAIN) if is_in_front else (*run, *launcher, *TASK_TRAIN)
    met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    done = call(command, tmp_path, timeout_s=250, **met)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("all complete") == 1, done.stderr
    found = rows(tmp_path, "ranks", "--db", "job.duckdb")
    assert [(rank["attempt"], rank["rank"], rank["complete"]) for rank in found] == [
        (0, rank, True) for rank in range(RANKS)
    ]
