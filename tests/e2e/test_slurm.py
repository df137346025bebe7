"""One ``rankmem run`` for each task of a real Slurm: two nodes of this machine, by daemons of the test's own.

Runs as root where Debian's packages slurm-wlm and munge are installed, and is skipped elsewhere; the suite
has the same with Slurm's variables set by hand (test_one_run_a_rank.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from main_job import RANKMEM, TIMEOUT_S, TRAIN, environment, rows
from served import free_port, served

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "scontrol")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, NEEDED)),
        reason="needs root and Debian's slurm-wlm and munge",
    ),
]
TASK_TRAIN = Path(__file__).with_name("task_train.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
CONFIGURATION = """
ClusterName=tiny
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=4 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=4 RealMemory=1000
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that srun needs."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.parent.chmod(0o755)  # munge wants to be found by everybody, and its key by nobody
    folder.chmod(0o755)
    for name in ("run", "state", "secret"):
        (folder / name).mkdir(mode=0o700 if name == "secret" else 0o755)
    key, configuration = folder / "secret" / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    ports = {name: free_port() for name in ("port", "n1", "n2")}
    configuration.write_text(CONFIGURATION.format(host=socket.gethostname(), folder=folder, **ports))
    variables = {"SLURM_CONF": str(configuration)}
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/run/munge.socket", f"--key-file={key}"]
    munged += [f"--seed-file={folder}/secret/seed", f"--pid-file={folder}/run/munged.pid"]
    commands = [munged, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in ("n1", "n2"))]
    with contextlib.ExitStack() as running, (folder / "log").open("w") as log:
        for command in commands:
            daemon = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
            running.callback(daemon.wait, TIMEOUT_S)
            running.callback(daemon.terminate)
        _wait_for_nodes(variables)
        yield variables


def _wait_for_nodes(variables: dict[str, str]) -> None:
    tried = subprocess.run(
        (
            "sh",
            "-c",
            "for i in $(seq 60); do sinfo -h -o %T | grep -qx idle && exit 0; sleep 1; done; exit 1",
        ),
        env=os.environ | variables,
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip("Slurm's daemons do not come up here")


def srun(folder: Path, slurm: dict[str, str], tasks: int, aggregator: str, *command: str) -> str:
    """Runs ``rankmem run`` as tasks on both nodes; what they said."""
    met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    run = ("srun", "-N2", f"-n{tasks}", *RANKMEM, "run", "--aggregator", aggregator, "--", *command)
    done = subprocess.run(
        run,
        cwd=folder,
        env=environment(folder, **slurm, **met),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def ranks_of(folder: Path, aggregator: str, session: dict[str, object]) -> list[tuple[int, int, bool]]:
    found = rows(folder, "ranks", "--session", str(session["session_id"]), "--aggregator", aggregator)
    assert session["complete"] == all(rank["complete"] for rank in found)
    return [(rank["attempt"], rank["rank"], rank["complete"]) for rank in found]


def test_tasks_and_nodes_of_a_slurm_step_are_one_session_of_one_attempt(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    with served(tmp_path) as aggregator:
        said = srun(tmp_path, slurm, 4, aggregator, sys.executable, str(TASK_TRAIN))
        assert said.count("all complete") == 1, said
        (session,) = rows(tmp_path, "sessions", "--aggregator", aggregator)
        assert ranks_of(tmp_path, aggregator, session) == [(0, rank, True) for rank in range(4)]
        torchrun = (*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d")
        meeting = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "7", str(TRAIN))
        said = srun(tmp_path, slurm, 2, aggregator, *torchrun, *meeting)
        second, first = rows(tmp_path, "sessions", "--aggregator", aggregator)
        assert first == session
        assert ranks_of(tmp_path, aggregator, second) == [(0, rank, True) for rank in range(4)]
