"""Facts of job, rank and host: ids that all ranks derive alike, and columns that exist."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from pathlib import Path

import pytest

import rankmem_agent
from rankmem_agent import facts
from rankmem_agent.config import AgentConfig
from rankmem_agent.preload.rank_detection import DetectedRank
from rankmem_agent.session_ids import ALPHABET, TIME_CHARS
from rankmem_agent.spool.process_stat import process_start_ticks
from rankmem_protos.tables import TABLES

TORCHRUN = DetectedRank(rank=3, world_size=8, local_rank=1, local_world_size=2, attempt=2, key="RANK/3/8/1/2")
PLAIN = DetectedRank()


def _decoded(text: str) -> int:
    value = 0
    for char in text:
        value = value * 32 + ALPHABET.index(char)
    return value


def test_a_configured_session_wins() -> None:
    assert (
        facts.session_id({"SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}, TORCHRUN, "1ng35yz7rzsj")
        == "1ng35yz7rzsj"
    )


def test_ranks_of_one_launcher_derive_the_same_session() -> None:
    other = DetectedRank(rank=0, world_size=8, local_rank=0, attempt=3, key="RANK/0/8/0/3")
    assert facts.session_id({"GROUP_WORLD_SIZE": "1"}, TORCHRUN) == facts.session_id({}, other)
    started_s = _decoded(facts.session_id({}, TORCHRUN)[:TIME_CHARS])
    assert started_s == facts.process_started_ns(os.getppid()) // 1_000_000_000


def test_a_script_without_a_launcher_is_a_session_of_its_own() -> None:
    plain = facts.session_id({}, PLAIN)
    assert plain != facts.session_id({}, TORCHRUN)
    assert _decoded(plain[:TIME_CHARS]) == facts.process_started_ns(os.getpid()) // 1_000_000_000


def test_hosts_of_a_slurm_job_step_derive_the_same_session() -> None:
    step = {
        "GROUP_WORLD_SIZE": "2",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_START_TIME": "1795266555",
    }
    first, second = ({**step, "SLURM_NODEID": str(node), "MASTER_PORT": str(node)} for node in range(2))
    assert facts.session_id(first, TORCHRUN) == facts.session_id(second, TORCHRUN)
    assert facts.session_id(first, TORCHRUN) != facts.session_id({**step, "SLURM_JOB_ID": "78"}, TORCHRUN)
    assert facts.session_id(first, TORCHRUN) != facts.session_id({**step, "SLURM_STEP_ID": "1"}, TORCHRUN)
    requeued = {**step, "SLURM_RESTART_COUNT": "1", "SLURM_JOB_START_TIME": "1795269999"}
    assert facts.session_id(first, TORCHRUN) == facts.session_id(requeued, TORCHRUN)


SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_NAMESPACE": "637599745",
    "OMPI_MCA_orte_precondition_transports": "f9a8a8ecac39ea43-5a40af2968152763",
}
PMI2 = {"PMI_SIZE": "4", "PMI_JOBID": "7.0"}


@pytest.mark.parametrize("launcher", [SRUN, OPEN_MPI, PMI2], ids=["srun", "mpirun", "pmi"])
def test_tasks_of_a_launcher_are_one_session_and_one_launch(launcher: dict[str, str]) -> None:
    ranks = [
        DetectedRank(rank=rank, world_size=4, key=f"TASK/{rank}/4/0/0//", launch_pid=rank) for rank in (0, 3)
    ]
    assert len({facts.session_id(launcher, each) for each in ranks}) == 1
    assert len({facts.launch(each, launcher) for each in ranks}) == 1
    assert facts.start_facts(ranks[0], launcher) == facts.start_facts(ranks[1], launcher)
    assert facts.launched_by(ranks[0]) != facts.launched_by(ranks[1])


def test_tasks_of_a_launcher_that_names_no_job_are_one_launch_of_their_session() -> None:
    """MPICH's Hydra: each task below a rankmem run of its own."""
    ranks = [
        DetectedRank(rank=rank, world_size=4, key=f"PMI_RANK/{rank}/4/0/0//", launch_pid=rank)
        for rank in (0, 3)
    ]
    assert len({facts.launch(each, {"PMI_SIZE": "4"}) for each in ranks}) == 1
    assert facts.start_facts(ranks[0], {}) != facts.start_facts(ranks[1], {})


def test_ranks_that_a_script_numbers_for_srun_are_one_launch() -> None:
    """``RANK=$SLURM_PROCID`` in a wrapper, as many have it."""
    ranks = [
        DetectedRank(rank=rank, world_size=4, key=f"RANK/{rank}/4/0/0/29500/", launch_pid=rank)
        for rank in (0, 3)
    ]
    assert len({facts.launch(each, SRUN) for each in ranks}) == 1
    assert len({facts.launch(each, {}) for each in ranks}) == 1


def test_two_torchruns_of_one_job_on_one_host_are_one_launch() -> None:
    several, one = {"GROUP_WORLD_SIZE": "2"}, {"GROUP_WORLD_SIZE": "1"}
    ranks = [
        DetectedRank(rank=rank, world_size=4, key=f"RANK/{rank}/4/0/0/29500/job", launch_pid=rank)
        for rank in (0, 3)
    ]
    assert len({facts.launch(each, several) for each in ranks}) == 1
    assert len({facts.launch(each, one) for each in ranks}) == 2
    other = DetectedRank(rank=0, world_size=4, key="RANK/0/4/0/0/29501/job")
    assert facts.launch(ranks[0], several) != facts.launch(other, several)


def test_hosts_of_a_rendezvous_derive_the_same_session_from_its_id() -> None:
    several = {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job-9"}
    assert facts.session_id(several, TORCHRUN) == facts.session_id({**several, "MASTER_ADDR": "b"}, TORCHRUN)
    assert facts.session_id(several, TORCHRUN) != facts.session_id({}, TORCHRUN)


def test_hosts_that_share_nothing_unique_are_sessions_of_their_own() -> None:
    several = {
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "none",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "29500",
    }
    assert facts.session_id(several, TORCHRUN) == facts.session_id({}, TORCHRUN)


def test_this_process_started_before_now_and_after_the_boot() -> None:
    started_ns = facts.process_started_ns(os.getpid())
    uptime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    now_ns = time.time_ns()
    assert now_ns - uptime_ns - 2_000_000_000 < started_ns <= now_ns


def test_a_process_name_with_spaces_and_parentheses_does_not_shift_the_fields(tmp_path: Path) -> None:
    ticks = process_start_ticks(os.getpid())
    comm = Path("/proc/self/comm")
    before = comm.read_text()
    try:
        comm.write_text("a) 1 (b")
        assert process_start_ticks(os.getpid()) == ticks > 0
    finally:
        comm.write_text(before.strip())


def test_a_missing_process_has_no_start() -> None:
    assert process_start_ticks(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            "session",
            facts.session_facts(AgentConfig.from_environment({}), "1ng35yz7rzsj", TORCHRUN, "2.13.0"),
        ),
        ("rank_info", {**facts.rank_facts("1ng35yz7rzsj", TORCHRUN), "spool_id": "with the place"}),
        ("host_info", facts.host_facts()),
    ],
)
def test_every_fact_is_a_column_and_none_that_must_be_there_is_missing(
    table: str, told: dict[str, object]
) -> None:
    columns = {column.name: column for column in TABLES[table].columns}
    assert set(told) <= set(columns)
    assert {name for name, column in columns.items() if not column.nullable} <= {
        name for name, value in told.items() if value is not None
    }


def test_arguments_of_the_script_are_stored_on_demand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", "secret"])
    monkeypatch.setattr(facts, "script_name", lambda: "train.py")
    quiet = facts.session_facts(AgentConfig.from_environment({}), "s", PLAIN, "2.13.0")
    full = facts.session_facts(
        AgentConfig.from_environment({"RANKMEM_COMMAND": "full"}), "s", PLAIN, "2.13.0"
    )
    assert quiet["command"] == "train.py"
    assert full["command"] == "train.py --token ***"


def test_the_address_is_found_without_asking_a_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_resolver(*_: object) -> None:
        raise AssertionError("asked a resolver")

    for name in ("getaddrinfo", "gethostbyname", "getfqdn", "gethostbyaddr"):
        monkeypatch.setattr(facts.socket, name, no_resolver)
    assert facts.address()


def test_the_version_is_the_project_s() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert rankmem_agent.__version__ == project["project"]["version"]
