"""A job of which several ``rankmem run`` are parts, and a session's id that comes back.

The launchers' variables are set as srun, mpirun and Hydra set them; a real Slurm is in test_slurm.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ending import outputs
from main_job import RUN, TIMEOUT_S, TRAIN, environment, rows
from ports import free_port
from repetitions import PROFILE
from served import served

TASK_TRAIN = (sys.executable, str(Path(__file__).with_name("task_train.py")))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
RANKS = 3 if PROFILE == "long" else 2
DOUBLED = """
SELECT session_id, attempt, rank, device, seq FROM memory_event GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL
"""


def srun(rank: int) -> dict[str, str]:
    task = {"JOB_ID": "41", "STEP_ID": "0", "PROCID": str(rank), "LOCALID": str(rank), "NTASKS": str(RANKS)}
    return {
        f"SLURM_{name}": value for name, value in (task | {"NNODES": "1", "CLUSTER_NAME": "tiny"}).items()
    }


def requeued(rank: int) -> dict[str, str]:
    return srun(rank) | {"SLURM_RESTART_COUNT": "1"}


def mpirun(rank: int) -> dict[str, str]:
    world = {"RANK": rank, "SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_SIZE": RANKS}
    named = {"PMIX_NAMESPACE": "637599745", "OMPI_MCA_orte_precondition_transports": "f9a8-5a40"}
    return named | {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in world.items()}


def hydra(rank: int) -> dict[str, str]:
    numbers = {"PMI_RANK": rank, "PMI_SIZE": RANKS, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": RANKS}
    return {name: str(value) for name, value in numbers.items()}


def by_hand(rank: int) -> dict[str, str]:
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    return numbers | {"RANKMEM_SESSION": "by-hand"}


def start(
    folder: Path, command: Sequence[str], variables: dict[str, str], *options: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (*RUN, *options, "--", *command),
        cwd=folder,
        env=environment(folder, GLOO_SOCKET_IFNAME="lo", **variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(runs: Sequence[subprocess.Popen[str]]) -> list[str]:
    """What each said, once all have ended well; none is left behind."""
    said = [text for _, text in outputs(runs, TIMEOUT_S)]
    assert [run.returncode for run in runs] == [0] * len(runs), said
    assert not any("still run" in text for text in said), "what others record is stored"
    return said


def rendezvous() -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def launched(folder: Path, launcher: Callable[[int], dict[str, str]], *options: str) -> list[str]:
    """One run for each rank, all at once; what each said."""
    met = rendezvous()
    return ended([start(folder, TASK_TRAIN, launcher(rank) | met, *options) for rank in range(RANKS)])


def attempts(folder: Path, *place: str) -> list[tuple[int, int, bool]]:
    """(attempt, rank, complete) of the one session, of which both answers say the same."""
    (session,) = rows(folder, "sessions", *place)
    found = rows(folder, "ranks", "--session", session["session_id"], *place)
    assert session["complete"] == all(rank["complete"] for rank in found), (session, found)
    assert session["num_attempts"] == len({rank["attempt"] for rank in found})
    assert rows(folder, "sql", DOUBLED, *place) == []
    return [(rank["attempt"], rank["rank"], rank["complete"]) for rank in found]


def whole(*numbers: int, ranks: int = RANKS) -> list[tuple[int, int, bool]]:
    return [(number, rank, True) for number in numbers for rank in range(ranks)]


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(srun, marks=pytest.mark.long),
        by_hand,
        pytest.param(mpirun, marks=pytest.mark.long),
        pytest.param(hydra, marks=pytest.mark.long),
    ],
)
def test_one_run_for_each_rank_is_one_session_of_one_attempt(
    tmp_path: Path, launcher: Callable[[int], dict[str, str]]
) -> None:
    with served(tmp_path) as aggregator:
        place = ("--aggregator", aggregator)
        said = launched(tmp_path, launcher, *place)
        assert attempts(tmp_path, *place) == whole(0)
        assert sorted(share["rank"] for share in rows(tmp_path, "job-peak", *place)) == list(range(RANKS))
    if launcher is not by_hand:  # of which no launcher says which is the first
        assert sum("all complete" in text for text in said) == 1, said


def test_one_run_for_each_rank_records_into_one_file(tmp_path: Path) -> None:
    """Without an aggregator: one of them holds the file, for all, until the last is done."""
    said = launched(tmp_path, srun, "--db", "job.duckdb")
    assert attempts(tmp_path, "--db", "job.duckdb") == whole(0), said
    assert not any("rankmem ship" in text for text in said), said


def test_a_requeued_job_is_the_next_attempt_of_its_session(tmp_path: Path) -> None:
    with served(tmp_path) as aggregator:
        launched(tmp_path, srun, "--aggregator", aggregator)
        launched(tmp_path, requeued, "--aggregator", aggregator)
        assert attempts(tmp_path, "--aggregator", aggregator) == whole(0, 1)


def test_a_session_that_is_recorded_twice_has_two_attempts_and_says_so(tmp_path: Path) -> None:
    place, plain = ("--db", "job.duckdb"), (sys.executable, str(TRAIN))
    said = [ended([start(tmp_path, plain, {}, *place, "--session", "100")]) for _ in range(2)]
    assert attempts(tmp_path, *place) == whole(0, 1, ranks=1)
    assert "already existed" not in said[0][0]
    assert "already existed (attempt 0): this run is attempt 1" in said[1][0]


def test_two_runs_of_a_session_that_are_live_at_once_do_not_mix(tmp_path: Path) -> None:
    """On two hosts that know nothing of each other: two folders for spools."""
    with served(tmp_path) as aggregator:
        place = ("--aggregator", aggregator)
        runs = []
        for number in range(2):
            torchrun = (*TORCHRUN, "--standalone", "--nproc-per-node", "1", str(TRAIN))
            spools = {"RANKMEM_SPOOL_DIR": str(tmp_path / f"spool-{number}")}
            runs.append(start(tmp_path, torchrun, spools, *place, "--session", "100"))
        ended(runs)
        assert attempts(tmp_path, *place) == whole(0, 1, ranks=1)


def test_two_torchruns_of_one_job_on_one_host_are_one_attempt(tmp_path: Path) -> None:
    """Two containers that share the memory, or two Slurm nodes of one machine: one folder for spools."""
    met = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    with served(tmp_path) as aggregator:
        place = ("--aggregator", aggregator)
        runs = []
        for number in range(2):
            host = ("--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "2")
            torchrun = (*TORCHRUN, *host, *met, str(TRAIN))
            runs.append(start(tmp_path, torchrun, {}, *place, "--session", "job-7"))
        ended(runs)
        assert attempts(tmp_path, *place) == whole(0, ranks=4)
        assert sorted(share["rank"] for share in rows(tmp_path, "job-peak", *place)) == list(range(4))
