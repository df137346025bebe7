"""One ``rankmem run`` for each task of a real Slurm: two nodes of this machine, by daemons of the test's own.

Runs as root where Debian's packages slurm-wlm and munge are installed, and is skipped elsewhere; the suite
has the same with Slurm's variables set by hand (test_one_run_a_rank.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from main_job import RUN, TIMEOUT_S, TRAIN, environment, rows
from ports import free_port
from served import served
from waiting import until

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
KillWait=120
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=4 RealMemory=1000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=4 RealMemory=1000 Gres=gpu:2
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


GPUS = "NodeName=n[1-2] Name=gpu File={folder}/gpu[0-1]\n"
WITH_NAMES = 'mount --bind "$0" /etc/hosts && exec "$@"'
"""Runs a daemon where n1 and n2 are names of this machine, as they are where a cluster is."""


@pytest.fixture(scope="module")
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
    (folder / "gres.conf").write_text(GPUS.format(folder=folder))
    for name in ("gpu0", "gpu1"):  # Slurm counts them, and looks no further
        os.mknod(folder / name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    (folder / "hosts").write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 n1 n2\n")
    variables = {"SLURM_CONF": str(configuration)}
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/run/munge.socket", f"--key-file={key}"]
    munged += [f"--seed-file={folder}/secret/seed", f"--pid-file={folder}/run/munged.pid"]
    commands = [munged, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in ("n1", "n2"))]
    with contextlib.ExitStack() as running, (folder / "log").open("w") as log:
        for command in commands:
            named = ["unshare", "--mount", "sh", "-c", WITH_NAMES, str(folder / "hosts"), *command]
            daemon = subprocess.Popen(named, env=os.environ | variables, stdout=log, stderr=log)
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
    run = ("srun", "-N2", f"-n{tasks}", *RUN, "--aggregator", aggregator, "--", *command)
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


ENDLESS = """
import os, pathlib, sys, time
import torch

def main():
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    done = pathlib.Path(f"steps-{os.environ['RANK']}")
    for step in range(10 if "SLURM_RESTART_COUNT" in os.environ else 100_000):
        net(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        done.write_text(str(step + 1))
        time.sleep(0.02)

main()
"""
"""Trains until it is stopped, and notes the steps it has done; a little, where it is started again."""
MULTI_NODE = Path(__file__).parents[2] / "deploy" / "slurm-multi-node.sbatch"
ONE_NODE = MULTI_NODE.with_name("slurm.sbatch")
TWO_NODES = ("--nodes=2", "--gpus-per-node=2")


class Submitted:
    """A job by one of the scripts of deploy/, in a folder with its train.py."""

    def __init__(self, folder: Path, slurm: dict[str, str], script: Path, train: str, *options: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(train)
        self._environment = environment(
            folder, **slurm, HOME=str(folder), GLOO_SOCKET_IFNAME="lo", SLURM_TMPDIR=str(folder / "local"),
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            RANKMEM_TAP_CACHE=os.environ.get("RANKMEM_TAP_CACHE", str(Path.home() / ".cache" / "rankmem")),
        )  # fmt: skip
        (folder / "local").mkdir()
        told = self.tell("sbatch", "--parsable", "--job-name=fine", "--output=said", *options, str(script))
        self.number = told.strip()
        self.database = folder / f"rankmem-{self.number}.duckdb"

    def tell(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def state(self) -> str:
        shown = self.tell("scontrol", "show", "job", self.number)
        return shown.partition("JobState=")[2].split()[0]

    def wait(self, *states: str) -> None:
        until(f"job {self.number} is {states}", lambda: self.state in states, 240)

    def steps_of(self, rank: int) -> int:
        try:
            return int((self.folder / f"steps-{rank}").read_text() or 0)
        except FileNotFoundError:
            return 0

    def wait_for_steps(self, num_ranks: int) -> None:
        until("all ranks train", lambda: all(self.steps_of(rank) > 20 for rank in range(num_ranks)), 120)

    def rows(self, *question: str) -> list[dict[str, Any]]:
        return rows(self.folder, *question, "--db", str(self.database))


def test_the_script_for_several_nodes_runs_whole_with_tls_and_tokens(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    job = Submitted(tmp_path, slurm, MULTI_NODE, TRAIN.read_text(), *TWO_NODES)
    job.wait("COMPLETED", "FAILED")
    assert job.state == "COMPLETED", job.said
    found = job.rows("ranks")
    assert [(row["attempt"], row["rank"], row["complete"]) for row in found] == [
        (0, r, True) for r in range(4)
    ]
    assert not list((tmp_path / ".rankmem").iterdir()), "secrets are left"


def test_one_task_a_gpu_is_one_session_by_the_same_script(tmp_path: Path, slurm: dict[str, str]) -> None:
    tasks = ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1", "--gpus-per-node=2")
    job = Submitted(tmp_path, slurm, MULTI_NODE, TASK_TRAIN.read_text(), *tasks)
    job.wait("COMPLETED", "FAILED")
    assert job.state == "COMPLETED", job.said
    (session,) = job.rows("sessions")
    assert session["complete"]
    found = job.rows("ranks")
    assert [(row["attempt"], row["rank"], row["complete"]) for row in found] == [
        (0, r, True) for r in range(4)
    ]


def test_two_steps_in_one_job_are_two_sessions(tmp_path: Path, slurm: dict[str, str]) -> None:
    text = MULTI_NODE.read_text()
    begin, end = text.index("srun rankmem run"), text.index("# This signal drains")
    twice = tmp_path / "twice.sbatch"
    twice.write_text(text[:end] + text[begin:end] + text[end:])
    job = Submitted(tmp_path, slurm, twice, TRAIN.read_text(), *TWO_NODES)
    job.wait("COMPLETED", "FAILED")
    assert job.state == "COMPLETED", job.said
    sessions = job.rows("sessions")
    assert len(sessions) == 2
    for session in sessions:
        found = job.rows("ranks", "--session", str(session["session_id"]))
        assert [(row["attempt"], row["complete"]) for row in found] == [(0, True)] * 4


@pytest.mark.parametrize("script", [MULTI_NODE, ONE_NODE], ids=lambda path: path.name)
def test_what_was_recorded_before_scancel_is_delivered(
    tmp_path: Path, slurm: dict[str, str], script: Path
) -> None:
    num_ranks, options = (4, TWO_NODES) if script == MULTI_NODE else (2, ("--gpus-per-node=2",))
    job = Submitted(tmp_path, slurm, script, ENDLESS, *options)
    job.wait_for_steps(num_ranks)
    before = [job.steps_of(rank) for rank in range(num_ranks)]
    job.tell("scancel", job.number)
    job.wait("CANCELLED")
    until("the script has ended", job.database.exists, 60)
    found = job.rows("ranks")
    assert [row["rank"] for row in found] == list(range(num_ranks))
    assert all(row["events_lost"] == 0 for row in found), found
    for rank, steps in enumerate(before):
        assert len(job.rows("steps", "--rank", str(rank), "--limit", "0")) >= steps


def test_a_requeued_job_is_the_next_attempt_of_its_session(tmp_path: Path, slurm: dict[str, str]) -> None:
    job = Submitted(tmp_path, slurm, MULTI_NODE, ENDLESS, *TWO_NODES)
    job.wait_for_steps(4)
    job.tell("scontrol", "requeue", job.number)
    job.wait("PENDING")
    job.tell("scontrol", "update", f"jobid={job.number}", "StartTime=now")
    job.wait("COMPLETED", "FAILED")
    assert job.state == "COMPLETED", job.said
    (session,) = job.rows("sessions")
    found = job.rows("ranks", "--session", str(session["session_id"]))
    assert sorted({row["attempt"] for row in found}) == [0, 1]
    assert all(row["complete"] for row in found if row["attempt"] == 1)
