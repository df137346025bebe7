"""A training behaves as without us: output, exit code, results; and leaves complete data where it can.

Of ways to end, CI has one of each kind: an exception, an exit that Python does not see, a signal, an
interrupt. Of reasons why the agent cannot start, it has one each of the tap, the folders and the settings.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from harmless_runs import (
    SCRIPTS,
    SESSION,
    TIMEOUT_S,
    TORCHRUN,
    Run,
    preloaded,
    script,
    spools,
    without_agent,
)
from rankmem_agent.config import AgentConfig
from rankmem_agent.spool.folder import default_roots
from repetitions import long_but


@pytest.fixture(scope="module")
def plain_on_two_ranks() -> Run:
    """The seeded training below torchrun, without us."""
    run = without_agent([*TORCHRUN, "--nproc-per-node", "2", str(SCRIPTS / "seeded.py")])
    assert run.returncode == 0, run.stderr
    return run


def test_a_seeded_training_on_two_ranks_gives_the_same_bits(plain_on_two_ranks: Run, tmp_path: Path) -> None:
    plain = plain_on_two_ranks
    recorded = preloaded([*TORCHRUN, "--nproc-per-node", "2", str(SCRIPTS / "seeded.py")], tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    assert sorted(plain.stdout.splitlines()) == sorted(recorded.stdout.splitlines())
    assert plain.stdout.count("\n") == 12
    assert plain.stderr == recorded.stderr
    found = spools(tmp_path)
    assert [spool.name.rsplit("-", 1)[0] for spool in found] == ["0-0", "0-1"]
    assert all(spool.ended and spool.lost == 0 and spool.steps == 5 and spool.events > 100 for spool in found)


@pytest.fixture(scope="module")
def plain_alone() -> Run:
    """The seeded training in a plain process, without us."""
    return without_agent(script("seeded.py"))


def test_a_plain_script_gives_the_same_bits_as_rank_0_of_1(plain_alone: Run, tmp_path: Path) -> None:
    assert plain_alone == preloaded(script("seeded.py"), tmp_path)
    assert [spool.steps for spool in spools(tmp_path)] == [5]


@pytest.mark.long
def test_the_module_form_gives_the_same_bits_without_preload(plain_on_two_ranks: Run, tmp_path: Path) -> None:
    seeded, plain = str(SCRIPTS / "seeded.py"), plain_on_two_ranks
    recorded = without_agent(
        [*TORCHRUN, "--nproc-per-node", "2", "-m", "rankmem_agent", seeded],
        RANKMEM_SPOOL_DIR=str(tmp_path / "spool"),
        RANKMEM_DRAIN_S="0",
        RANKMEM_SHIP_DRAIN_S="1",
    )
    assert recorded.returncode == 0
    assert sorted(plain.stdout.splitlines()) == sorted(recorded.stdout.splitlines())
    assert plain.stderr == recorded.stderr
    assert [spool.steps for spool in spools(tmp_path)] == [5, 5]
    assert len({path.parent for path in (tmp_path / "spool").glob("*/*-*-*/")}) == 1  # one session


@pytest.mark.parametrize("start", long_but(["fork", "spawn"], "fork"))
def test_workers_of_a_dataloader_and_their_children_stay_silent(start: str, tmp_path: Path) -> None:
    plain, recorded = (
        without_agent(script("loader.py", start)),
        preloaded(script("loader.py", start), tmp_path),
    )
    assert plain == recorded
    assert plain.returncode == 0
    found = spools(tmp_path)
    assert len(found) == 1
    assert found[0].ended


@pytest.mark.parametrize("backend", long_but(["eager", "aot_eager", "inductor"], "eager"))
def test_a_compiled_model_has_the_same_graphs_output_and_warnings(backend: str, tmp_path: Path) -> None:
    # A cache of its own for each run: the second would find what the first compiled, and count less.
    runs = [
        without_agent(script("compiled.py", backend), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "plain")),
        preloaded(script("compiled.py", backend), tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "ours")),
    ]
    plain, recorded = (
        Run(r.returncode, r.stdout, re.sub(r"[WI]\d{4} [\d:.]+ \d+ ", "", r.stderr)) for r in runs
    )
    assert plain.returncode == 0, plain.stderr
    assert "'unique_graphs', 2" in plain.stdout
    assert plain == recorded
    assert [spool.steps for spool in spools(tmp_path)] == [3]


@cache
def plainly_ended(way: str) -> Run:
    """A training that ends in this way, without us: run once for all that are held against it."""
    return without_agent(script("ends.py", way))


@pytest.mark.parametrize(
    "way",
    long_but(
        ["raise", "exit", "text", "os._exit", "abort", "kill", "interrupt", "terminate"],
        "raise",
        "os._exit",
        "kill",
        "interrupt",
    ),
)
def test_every_way_to_end_looks_as_without_us(way: str, tmp_path: Path) -> None:
    plain, recorded = plainly_ended(way), preloaded(script("ends.py", way), tmp_path)
    assert plain == recorded
    assert plain.stdout == "trained\n"
    found = spools(tmp_path)
    assert len(found) == 1
    assert found[0].events >= 10  # what was recorded outlives the process
    assert found[0].lost == 0
    assert found[0].ended == (way in ("raise", "exit", "text", "interrupt"))


@pytest.mark.parametrize("way", long_but(["raise", "exit", "interrupt"], "raise"))
def test_every_way_to_end_looks_as_without_us_in_the_module_form(way: str, tmp_path: Path) -> None:
    plain = plainly_ended(way)
    recorded = without_agent(
        [sys.executable, "-m", "rankmem_agent", str(SCRIPTS / "ends.py"), way],
        RANKMEM_SPOOL_DIR=str(tmp_path / "spool"),
        RANKMEM_DRAIN_S="0",
        RANKMEM_SHIP_DRAIN_S="1",
    )
    assert plain == recorded
    assert [spool.ended for spool in spools(tmp_path)] == [True]


@pytest.mark.parametrize("ranks", long_but([4, 8], 4))
def test_ranks_that_start_at_once_build_the_tap_once(ranks: int, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    command = [*TORCHRUN, "--nproc-per-node", str(ranks), str(SCRIPTS / "ends.py"), "done"]
    settings = {"RANKMEM_DRAIN_S": "1", "RANKMEM_SHIP_DRAIN_S": "10"}  # nobody but the ranks starts a shipper
    recorded = preloaded(command, tmp_path, RANKMEM_TAP_CACHE=str(cache), **settings)
    assert (recorded.returncode, recorded.stderr) == (0, "")
    assert len(list(cache.glob("*.so"))) == 1
    found = spools(tmp_path)
    assert [spool.name.split("-")[1] for spool in found] == [str(rank) for rank in range(ranks)]
    assert all(spool.ended and spool.lost == 0 for spool in found)
    log = (tmp_path / "spool").glob("*/shipper.log")
    pids = {line.split()[2] for path in log for line in path.read_text().splitlines() if " INFO " in line}
    assert len(pids) == 1  # one shipper for all


def test_a_script_that_never_imports_torch_leaves_no_trace(tmp_path: Path) -> None:
    plain = without_agent(script("no_torch.py", "a", "--b"))
    assert plain == preloaded(script("no_torch.py", "a", "--b"), tmp_path)
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"CXX": "/bin/false", "RANKMEM_TAP_CACHE": "{folder}/empty"}, "could not build the tap"),
        pytest.param({"RANKMEM_TAP_CACHE": "/proc/nothing"}, "RANKMEM_TAP_CACHE", marks=pytest.mark.long),
        ({"RANKMEM_SPOOL_DIR": "/proc/nothing"}, "/proc/nothing"),
        pytest.param({"RANKMEM_SPOOL_BYTES": "none"}, "RANKMEM_SPOOL_BYTES='none'", marks=pytest.mark.long),
        ({"RANKMEM_AGGREGATOR": "nowhere"}, "RANKMEM_AGGREGATOR='nowhere'"),
    ],
)
def test_an_agent_that_cannot_start_says_one_line_and_the_training_runs(
    settings: dict[str, str], why: str, plain_alone: Run, tmp_path: Path
) -> None:
    settings = {name: value.format(folder=tmp_path) for name, value in settings.items()}
    broken = preloaded(script("seeded.py"), tmp_path, **settings)
    assert (broken.returncode, broken.stdout) == (0, plain_alone.stdout)
    assert broken.stderr.count("\n") == 1
    assert broken.stderr.startswith("rankmem: rank 0: the agent is off: ")
    assert why in broken.stderr
    assert "(try: " in broken.stderr
    assert all(spool.events == 0 for spool in spools(tmp_path)), (
        "one at most, which says that there is a rank"
    )
    for root in default_roots(AgentConfig.from_environment({})):
        shutil.rmtree(root / SESSION, ignore_errors=True)  # where its own folder cannot be used


def test_the_user_s_own_profiler_sees_what_it_sees_without_us(tmp_path: Path) -> None:
    plain, recorded = without_agent(script("profiled.py")), preloaded(script("profiled.py"), tmp_path)
    assert (plain.returncode, plain.stdout) == (recorded.returncode, recorded.stdout) == (0, "1 2048\n" * 2)
    timeless = [set(re.sub(r"[\d:-]+ ", "", run.stderr).splitlines()) for run in (plain, recorded)]
    assert timeless[0] == timeless[1], "the same lines, whether or not a profile had to be taken again"


def test_a_program_sees_itself_as_without_the_module_form(tmp_path: Path) -> None:
    own = str(SCRIPTS / "main_module.py")
    plain = without_agent([sys.executable, own, "-x", "1"])
    assert plain.stdout.count("True") == 7
    assert plain == without_agent([sys.executable, "-m", "rankmem_agent", own, "-x", "1"])


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    arguments = ["-m", "json.tool", "--help"]
    plain = without_agent([sys.executable, *arguments])
    assert plain == without_agent([sys.executable, "-m", "rankmem_agent", *arguments])


def test_a_script_that_is_not_there_is_said_as_python_says_it(tmp_path: Path) -> None:
    plain = without_agent([sys.executable, "nothing.py"])
    assert plain.returncode == 2
    assert plain == without_agent([sys.executable, "-m", "rankmem_agent", "nothing.py"])


def test_a_training_meets_no_child_of_ours_when_a_shipper_starts_nor_when_the_next_does(
    tmp_path: Path,
) -> None:
    session_dir = tmp_path / "spool" / SESSION
    command = script("waits_for_children.py", str(session_dir))
    done = preloaded(command, tmp_path, RANKMEM_DRAIN_S="5")
    assert (done.returncode, done.stderr) == (0, "")
    killed, heard = done.stdout.splitlines()
    assert heard == "[]"
    deadline = time.monotonic() + TIMEOUT_S
    while json.loads((session_dir / "shipper.json").read_text())["pid"] == int(killed):
        assert time.monotonic() < deadline, "the rank started no second shipper at its end"
        time.sleep(0.05)
