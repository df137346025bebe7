"""Ids of sessions: they sort by start, hosts derive them alike, and any text may stand for one."""

from __future__ import annotations

import pytest

from rankmem_agent.config import AgentConfig
from rankmem_agent.session_ids import (
    ALPHABET,
    TIME_CHARS,
    given_id,
    id_of_launch,
    id_of_text,
    is_session_id,
    make_session_id,
    on_several_hosts,
)

TORCHRUN = ("torchrun", "--nproc-per-node", "8")
SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_JOB_START_TIME": "1795266555"}


def test_session_ids_sort_by_their_start() -> None:
    ids = [make_session_id(started_s) for started_s in (1, 31, 32, 1_795_266_555, 1_795_266_556)]
    assert ids == sorted(ids)
    assert all(is_session_id(each) for each in ids)
    value = 0
    for char in ids[3][:TIME_CHARS]:
        value = value * 32 + ALPHABET.index(char)
    assert value == 1_795_266_555


def test_two_sessions_of_one_second_differ() -> None:
    ids = {make_session_id(1_795_266_555) for _ in range(20)}
    assert len(ids) in (19, 20)  # a clash of two in 33 million is no defect


def test_a_text_without_a_time_fills_the_whole_id() -> None:
    ids = [id_of_text(f"run {number}") for number in range(20_000)]
    assert len(set(ids)) == len(ids)  # of 25 bits six would be there twice
    assert {each[0] for each in ids} == {"0"}


@pytest.mark.parametrize("text", ["nightly-7", "short", "../../etc/xx", "x" * 500, "größe"])
def test_any_text_may_name_a_session(text: str) -> None:
    assert is_session_id(given_id(text))
    assert given_id(text) != given_id(text + " ")
    assert AgentConfig.from_environment({"RANKMEM_SESSION": text}).session_id == given_id(text)
    assert given_id(given_id(text)) == given_id(text)


def test_an_id_names_itself() -> None:
    assert given_id("1ng35yz7rzsj") == "1ng35yz7rzsj"


def test_hosts_of_a_slurm_job_share_an_id_and_one_host_needs_none() -> None:
    several = SLURM | {"SLURM_NNODES": "2"}
    other = several | {"SLURM_NODEID": "1"}
    assert id_of_launch(TORCHRUN, several) == id_of_launch(("python", "x.py"), other)
    assert id_of_launch(TORCHRUN, several) != id_of_launch(TORCHRUN, several | {"SLURM_STEP_ID": "1"})
    assert id_of_launch(TORCHRUN, SLURM | {"SLURM_NNODES": "1"}) is None


@pytest.mark.parametrize(
    "task",
    [
        SLURM
        | {"SLURM_NTASKS": "4", "SLURM_PROCID": "{rank}", "SLURM_NNODES": "1", "SLURM_LOCALID": "{rank}"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "{rank}", "PMIX_NAMESPACE": "prterun-a-77@1"},
        {"PMI_SIZE": "4", "PMI_RANK": "{rank}", "PMI_JOBID": "77.0"},
    ],
    ids=["srun", "mpirun", "pmi"],
)
def test_one_run_for_each_rank_is_one_session(task: dict[str, str]) -> None:
    tasks = [{name: value.format(rank=rank) for name, value in task.items()} for rank in range(4)]
    (session,) = {id_of_launch(("python", "train.py"), each) for each in tasks}
    assert session is not None
    again = {name: value.replace("77", "78") for name, value in tasks[0].items()}
    assert id_of_launch(("python", "train.py"), again) not in (None, session)


def test_a_requeued_job_is_the_session_that_it_was() -> None:
    first = SLURM | {"SLURM_NNODES": "2"}
    again = first | {"SLURM_RESTART_COUNT": "1", "SLURM_JOB_START_TIME": "1795269999"}
    assert id_of_launch(TORCHRUN, first) == id_of_launch(TORCHRUN, again)


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967290"}], ids=["batch", "interactive"])
def test_what_a_batch_script_or_a_shell_starts_one_after_the_other_are_sessions_of_their_own(
    step: dict[str, str],
) -> None:
    batch = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", **step}
    assert id_of_launch(("python", "train.py"), batch) is None
    assert id_of_launch(("srun", "torchrun", "--nproc-per-node", "2", "train.py"), batch) is None


@pytest.mark.parametrize("nnodes", ["--nnodes 2", "--nnodes=2", "--nnodes 1:4", "--nnodes=1:2"])
@pytest.mark.parametrize("rdzv", ["--rdzv-id job7", "--rdzv_id=job7"])
def test_hosts_of_a_rendezvous_share_an_id(nnodes: str, rdzv: str) -> None:
    command = (*TORCHRUN, *nnodes.split(), "--node-rank", "0", *rdzv.split(), "train.py")
    assert on_several_hosts(command)
    assert id_of_launch(command, {}) == id_of_text("run job7")
    assert id_of_launch(command[:-1], {"SLURM_JOB_ID": "77"}) == id_of_text("run job7")


@pytest.mark.parametrize("words", ["", "--nnodes 1", "--nnodes=1:1", "--nproc-per-node 2"])
def test_one_host_is_no_several(words: str) -> None:
    command = (*TORCHRUN, *words.split())
    assert not on_several_hosts(command)
    assert id_of_launch((*command, "--rdzv-id", "job7"), {}) is None


def test_several_hosts_without_anything_shared_have_no_id() -> None:
    assert id_of_launch((*TORCHRUN, "--nnodes", "2", "train.py"), {}) is None
