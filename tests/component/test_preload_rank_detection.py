"""Who is a rank: launchers and children are not, whatever variables they inherit."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import pytest
import torch  # noqa: F401  else nothing is attached

from rankmem_agent.preload import not_recorded
from rankmem_agent.preload.rank_detection import LAUNCH, MARK, DetectedRank, detect_rank, is_launcher
from rankmem_agent.preload.start import attach_after_torch

SCRIPT = ["/usr/bin/python3", "train.py", "--lr", "1"]
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_PORT": "29500",
}


def _claimed(environment: Mapping[str, str], program: list[str] = SCRIPT) -> DetectedRank:
    found = detect_rank(environment, program)
    assert found is not None
    return found


def _below(parent: Mapping[str, str]) -> dict[str, str]:
    """The environment that a child of the rank with environment ``parent`` inherits."""
    return {**parent, MARK: f"{os.getpid() + 1} {_claimed(parent).key}", LAUNCH: "7"}


def test_a_worker_of_torchrun_is_its_rank() -> None:
    found = _claimed(TORCHRUN)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size, found.attempt) == (
        5,
        8,
        1,
        4,
        2,
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"},
    ],
)
def test_workers_of_other_launchers_are_their_ranks(variables: dict[str, str]) -> None:
    found = _claimed(variables)
    assert (found.rank, found.world_size, found.local_rank, found.attempt) == (5, 8, 1, 0)


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967290"}], ids=["batch", "interactive"])
def test_a_process_of_a_slurm_batch_script_is_no_task_of_its_job(step: dict[str, str]) -> None:
    found = _claimed({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", **step})
    assert (found.rank, found.world_size) == (0, 1)


def test_torchrun_s_numbers_win_over_those_of_the_scheduler_around_it() -> None:
    assert _claimed({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", **TORCHRUN}).rank == 5


def test_a_script_without_a_launcher_is_rank_0_of_1() -> None:
    found = _claimed({})
    assert (found.rank, found.world_size, found.local_rank, found.attempt) == (0, 1, 0, 0)


def test_numbers_that_are_none_count_as_no_launcher() -> None:
    assert _claimed({"RANK": "first", "WORLD_SIZE": "8"}).world_size == 1


def test_a_child_competes_for_the_place_of_the_process_above_it() -> None:
    for environment in (TORCHRUN, {}):
        parent, child = _claimed(environment), _claimed(_below(environment))
        assert (child.rank, child.key, child.is_child) == (parent.rank, parent.key, True)
        assert child.launch_pid == 7
        assert not parent.is_child


def test_a_child_that_has_lost_its_rank_s_variables_competes_for_its_place_all_the_same() -> None:
    below = {name: _below(TORCHRUN)[name] for name in (MARK, LAUNCH)}
    child = _claimed(below)
    assert (child.rank, child.world_size, child.attempt, child.is_child) == (5, 8, 2, True)
    assert child.key == _claimed(TORCHRUN).key


def test_a_worker_below_a_script_that_started_torchrun_has_its_own_place() -> None:
    worker = _claimed(_below({}) | TORCHRUN)
    assert (worker.rank, worker.is_child, worker.launch_pid) == (5, False, os.getppid())


def test_a_worker_below_another_attempt_or_launch_has_its_own_place() -> None:
    below = _below(TORCHRUN)
    for other in ({"TORCHELASTIC_RESTART_COUNT": "3"}, {"MASTER_PORT": "29501"}):
        assert not _claimed({**below, **other}).is_child


def test_a_process_that_replaces_itself_is_no_child() -> None:
    found = _claimed(TORCHRUN)
    again = _claimed({**TORCHRUN, MARK: found.mark(), LAUNCH: "7"})
    assert (again.key, again.is_child, again.launch_pid) == (found.key, False, 7)


@pytest.mark.parametrize(
    "arguments",
    [
        ["/opt/env/bin/torchrun", "--nproc-per-node", "8", "train.py"],
        ["-m", "torch.distributed.run", "train.py"],
        ["-u", "-m", "torch.distributed.launch", "train.py"],
        ["-um", "torch.distributed.run", "train.py"],
        ["-mtorch.distributed.run", "train.py"],
        ["-W", "error", "-X", "dev", "-m", "torchx.apps.main"],
        ["/opt/env/bin/accelerate", "launch", "train.py"],
        ["-m", "accelerate.commands.launch", "train.py"],
        ["/opt/env/bin/deepspeed", "train.py"],
        ["-u", "-m", "deepspeed.launcher.launch", "train.py"],
        ["/opt/env/bin/rankmem", "run", "--", "torchrun", "train.py"],
        ["-m", "rankmem_ship", "/dev/shm/x"],
    ],
)
def test_launchers_are_left_alone_even_with_a_scheduler_s_variables(arguments: list[str]) -> None:
    program = ["/usr/bin/python3", *arguments]
    assert is_launcher(program)
    assert detect_rank({"RANK": "0", "WORLD_SIZE": "2"}, program) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.py"],
        ["-u", "train.py", "-m", "torch.distributed.run"],
        ["-m", "trainer.torchrun"],
        ["-c", "pass"],
        [],
    ],
)
def test_programs_of_the_user_are_no_launchers(arguments: list[str]) -> None:
    assert not is_launcher(["/usr/bin/python3", *arguments])


def test_an_agent_that_cannot_be_imported_is_said_and_torch_is_imported_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = _claimed(TORCHRUN)
    monkeypatch.setitem(os.environ, MARK, "")
    monkeypatch.setitem(os.environ, LAUNCH, "")
    monkeypatch.setitem(sys.modules, "rankmem_agent.preload.process_kind", None)  # what an import then raises
    told: list[object] = []
    monkeypatch.setattr(not_recorded, "record", lambda detected, error, is_worker: told.append(detected))
    attach_after_torch(mine)  # torch is here already, so at once
    assert capsys.readouterr().err.startswith("rankmem: rank 5: the agent is off: ")
    assert told == [mine]


@pytest.mark.parametrize("size", ["99999999999", "9" * 5000, str(2**20 + 1)])
def test_a_number_of_ranks_that_cannot_be_is_left_out_and_said(size: str) -> None:
    mine = _claimed({"RANK": "3", "WORLD_SIZE": size, "LOCAL_RANK": "1"})
    assert (mine.rank, mine.world_size, mine.local_rank, mine.local_world_size) == (3, 0, 1, 1)
    assert mine.discrepancy.startswith(f"WORLD_SIZE={size[:40]} cannot be")
    assert mine.discrepancy.endswith("left out")


def test_a_rank_that_cannot_be_is_no_rank_and_is_said() -> None:
    mine = _claimed({"RANK": "99999999999", "WORLD_SIZE": "2"})
    assert (mine.rank, mine.world_size) == (0, 1)
    assert mine.discrepancy.startswith("RANK=99999999999 cannot be")


def test_numbers_that_can_be_raise_no_doubt() -> None:
    most = _claimed({"RANK": str(2**20 - 1), "WORLD_SIZE": str(2**20)})
    assert (most.rank, most.world_size, most.discrepancy) == (2**20 - 1, 2**20, "")
