"""Frameworks, trackers and launchers themselves, in an environment of their own: every rank that they start
is recorded, and the memory of its steps is where they log.

Installed from the package index, so they run when asked for: ``make test-long``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from environment_over import environment_over, not_installed
from harmless_runs import SCRIPTS, preloaded, spools
from main_job import RANKMEM, TRAIN, call, rows

PACKAGES = (
    "lightning==2.6.*", "ray==2.60.*", "pandas", "tensorboardX",
    "transformers==5.*", "accelerate==1.*", "hydra-core==1.3.*",
    "tensorboard", "mlflow-skinny==3.*", "wandb==0.31.*",
)  # fmt: skip
DEEPSPEED = "deepspeed>=0.18"
"""Built as it is installed, where it can be."""
ROOTS = tuple(str(SCRIPTS.parents[2] / name) for name in ("agent", "protos", "cli", "aggregator"))
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "MLFLOW_ALLOW_FILE_STORE": "true"}
STEPS = 6
OF_STEPS = """
SELECT step, max(peak_bytes) AS peak_bytes, arg_max(last_bytes, seq_last) AS last_bytes
FROM step_bucket GROUP BY step ORDER BY step
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the frameworks over this one's packages."""
    found = environment_over(tmp_path_factory.mktemp("frameworks"))
    if failure := not_installed(found, *PACKAGES):
        pytest.skip(f"no frameworks from the package index: {failure}")
    return found


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Behind ``rankmem run``, into ``job.duckdb``."""
    given = OFFLINE | {"PYTHONPATH": os.pathsep.join(ROOTS), "DS_ACCELERATOR": "cpu"}
    run = (*RANKMEM, "run", "--db", "job.duckdb", "--no-diagnose", "--", *command)
    done = call(run, folder, timeout_s=300, GLOO_SOCKET_IFNAME="lo", **given)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "arguments", [["with_lightning.py", "ddp"], ["with_lightning.py", "ddp_spawn"], ["with_ray.py"]]
)
def test_both_ranks_are_recorded(arguments: list[str], python: str, tmp_path: Path) -> None:
    script, *rest = arguments
    done = preloaded([python, str(SCRIPTS / script), *rest], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rankmem: " not in done.stderr
    found = spools(tmp_path)
    assert [(spool.name[:3], spool.lost, spool.steps) for spool in found] == [("0-0", 0, 3), ("0-1", 0, 3)]
    for path in (tmp_path / "spool").glob("*/*-*-*/meta.json"):
        assert json.loads(path.read_text())["rank"]["world_size"] == 2
    assert list((tmp_path / "spool").glob("*/candidate-*")) == []


@pytest.mark.parametrize(
    ("way", "parts"),
    [
        ("lightning", {"sanity_check", "validation"}),
        ("transformers", {"evaluation"}),
        ("accelerate", set[str]()),
        ("tensorboard", set[str]()),
        ("mlflow", set[str]()),
        ("wandb", set[str]()),
    ],
)
def test_the_memory_of_steps_is_logged_as_the_database_has_it(
    way: str, parts: set[str], python: str, tmp_path: Path
) -> None:
    done = _run(tmp_path, python, str(SCRIPTS / "logs_memory.py"), way, "logs")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOGGED ")]
    logged = json.loads(line.removeprefix("LOGGED "))
    stored = rows(tmp_path, "sql", OF_STEPS, "--db", "job.duckdb")
    assert [row["step"] for row in stored] == list(range(STEPS))  # of two batches each
    begin = 0
    for step, figures in logged:
        window = stored[begin:step]
        assert figures["rankmem/peak_bytes"] == max(row["peak_bytes"] for row in window)
        assert figures["rankmem/last_bytes"] == window[-1]["last_bytes"]
        assert figures["rankmem/headroom_bytes"] > 0
        begin = step
    assert begin == STEPS
    markers = rows(tmp_path, "sql", "SELECT name FROM marker WHERE kind = 'annotate'", "--db", "job.duckdb")
    assert {marker["name"] for marker in markers} == parts


def test_accelerate_launch(python: str, tmp_path: Path) -> None:
    launcher = str(Path(python).with_name("accelerate"))
    given = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no")
    _run(tmp_path, launcher, "launch", *given, "--dynamo_backend", "no", str(TRAIN))
    _both_are_complete(tmp_path)


def test_deepspeed(python: str, tmp_path: Path) -> None:
    if failure := not_installed(python, DEEPSPEED):
        pytest.skip(f"DeepSpeed cannot be built here: {failure}")
    launcher = str(Path(python).with_name("deepspeed"))
    _run(tmp_path, launcher, "--num_accelerators", "2", "--no_local_rank", str(TRAIN))
    _both_are_complete(tmp_path)


def test_a_script_below_hydra_is_recorded_wherever_it_goes(python: str, tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(f"""
import runpy, sys
import hydra

@hydra.main(version_base=None)
def main(config):
    sys.argv[1:] = []
    runpy.run_path({str(TRAIN)!r}, run_name="__main__")

main()
""")
    _run(tmp_path, python, str(script), "hydra.job.chdir=true", "+steps=3")
    (rank,) = rows(tmp_path, "ranks", "--db", "job.duckdb")
    assert (rank["rank"], rank["complete"]) == (0, True)


def _both_are_complete(folder: Path) -> None:
    found = rows(folder, "ranks", "--db", "job.duckdb")
    assert [(rank["attempt"], rank["rank"], rank["complete"]) for rank in found] == [
        (0, 0, True),
        (0, 1, True),
    ]
    (counted,) = rows(
        folder, "sql", "SELECT DISTINCT world_size FROM rank_info ORDER BY ALL", "--db", "job.duckdb"
    )
    assert counted["world_size"] == 2
