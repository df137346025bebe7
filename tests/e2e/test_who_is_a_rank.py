"""A rank is who trains: whatever started it, however it was numbered, and nobody else.

CI has each kind of start and of numbers once; what only combines them is left to ``make test-long``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harmless_runs import (
    SCRIPTS,
    TIMEOUT_S,
    TORCHRUN,
    Run,
    preloaded,
    preloaded_env,
    script,
    spools,
)
from repetitions import long_but

STARTS = str(SCRIPTS / "starts_ranks.py")


def _run(way: str, folder: Path, *more: str, launcher: tuple[str, ...] = (sys.executable,)) -> Run:
    done = preloaded([*launcher, STARTS, way, str(folder / "store"), *more], folder)
    assert done.returncode == 0, done.stderr
    return done


def _ranks(folder: Path) -> list[tuple[int, int, int, int]]:
    """Attempt, rank, world size and steps of each spool, in order; there are no other folders."""
    for left in (folder / "spool").glob("*/*/"):
        assert (left / "meta.json").exists(), left
    found = []
    for spool, path in zip(spools(folder), sorted((folder / "spool").glob("*/*-*-*/")), strict=True):
        row = json.loads((path / "meta.json").read_text())["rank"]
        assert (spool.ended, spool.lost) == (True, 0)
        assert spool.events > 10
        assert path.name.startswith(f"{row['attempt']}-{row['rank']}-{row['pid']}")
        found.append((row["attempt"], row["rank"], row["world_size"], spool.steps))
    return sorted(found)


@pytest.mark.parametrize("way", long_but(["spawned", "forkserver", "children"], "children"))
def test_ranks_that_only_their_process_group_numbers_are_all_recorded(way: str, tmp_path: Path) -> None:
    done = _run(way, tmp_path)
    assert done.stderr == ""
    assert _ranks(tmp_path) == [(0, 0, 2, 3), (0, 1, 2, 3)]


def test_torch_s_spawn_is_such_a_start_and_the_next_one_another_attempt(tmp_path: Path) -> None:
    assert _run("spawn_twice", tmp_path).stderr == ""
    assert _ranks(tmp_path) == [(a, r, 2, 3) for a in (0, 1) for r in (0, 1)]


@pytest.mark.long
def test_a_wrapper_leaves_the_rank_to_the_trainings_that_it_starts_an_attempt_each(tmp_path: Path) -> None:
    assert _run("wrapper", tmp_path, "2").stderr == ""
    assert _ranks(tmp_path) == [(0, 0, 1, 3), (1, 0, 1, 3)]


def test_a_wrapper_below_torchrun_leaves_each_rank_to_its_training(tmp_path: Path) -> None:
    assert _run("wrapper", tmp_path, launcher=(*TORCHRUN, "--nproc-per-node", "2")).stderr == ""
    assert _ranks(tmp_path) == [(0, 0, 2, 3), (0, 1, 2, 3)]


def test_a_training_below_a_rank_is_not_recorded_and_says_so_once(tmp_path: Path) -> None:
    done = _run("evaluates", tmp_path)
    assert _ranks(tmp_path) == [(0, 0, 1, 6)]
    (line,) = done.stderr.splitlines()
    assert line.startswith("rankmem: ")
    assert "is not recorded" in line


def test_children_that_train_nothing_are_silent_and_leave_nothing(tmp_path: Path) -> None:
    assert _run("helpers", tmp_path).stderr == ""
    assert _ranks(tmp_path) == [(0, 0, 1, 3)]


def test_workers_that_only_infer_say_that_they_are_not_recorded(tmp_path: Path) -> None:
    lines = _run("infers", tmp_path).stderr.splitlines()
    assert len(lines) == 2, lines
    assert all("ran a model and is not recorded" in line for line in lines)
    assert _ranks(tmp_path) == []


def test_forked_ranks_say_that_they_are_not_recorded(tmp_path: Path) -> None:
    done = _run("fork", tmp_path)
    lines = sorted(done.stderr.splitlines())
    assert [line[: len("rankmem: rank N: ")] for line in lines] == ["rankmem: rank 0: ", "rankmem: rank 1: "]
    assert all("forked" in line and "spawn" in line for line in lines)
    assert _ranks(tmp_path) == []  # and the parent, which trained nothing, is not taken for the job


def test_a_script_of_tensors_alone_is_recorded(tmp_path: Path) -> None:
    assert _run("plain", tmp_path).stderr == ""
    assert _ranks(tmp_path) == [(0, 0, 1, 0)]


@pytest.mark.parametrize(
    ("way", "numbers"),
    [
        ("serves", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}),
        pytest.param("tensors", {}, marks=pytest.mark.long),
    ],
)
def test_a_job_without_an_optimizer_is_published_while_it_runs(
    way: str, numbers: dict[str, str], tmp_path: Path
) -> None:
    command = script("starts_ranks.py", way, str(tmp_path / "store"))
    with subprocess.Popen(command, env=preloaded_env(tmp_path) | numbers) as process:
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not list((tmp_path / "spool").glob("*/0-0-*/meta.json")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)


def test_a_rank_that_is_killed_before_it_trains_is_not_lost(tmp_path: Path) -> None:
    from main_job import RUN, call, rows

    code = "import os, signal, torch; x = torch.randn(1 << 20); os.kill(os.getpid(), signal.SIGKILL)"
    done = call((*RUN, "--", sys.executable, "-c", code), tmp_path)
    assert done.returncode == 137, done.stderr
    (rank,) = rows(tmp_path, "ranks")
    assert (rank["rank"], rank["events_lost"], rank["end_reason"]) == (0, 0, "killed")


@pytest.mark.parametrize("options", long_but([["-I"], ["-E"], ["-u", "-Es"], ["-S"]], ["-I"], ["-S"]))
def test_a_python_that_ignores_the_preload_is_said_before_it_runs(options: list[str], tmp_path: Path) -> None:
    from main_job import RUN, call

    done = call((*RUN, "--", sys.executable, *options, "-c", "print('ran')"), tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "is not recorded" in done.stderr
    assert "Try: " in done.stderr
