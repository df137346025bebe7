"""DeepSpeed's ZeRO and Megatron themselves, on CPU by gloo: no loss changes, and what they hold is known.

Installed from the package index, over this interpreter's packages. DeepSpeed compiles an operator of its own
at its first run, which takes minutes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from environment_over import environment_over, not_installed
from harmless_runs import SCRIPTS
from main_job import RANKMEM, TORCHRUN, call, rankmem, rows

DEEPSPEED = "deepspeed>=0.18"
MEGATRON = "megatron-core>=0.16"
ROOTS = tuple(str(SCRIPTS.parents[2] / name) for name in ("agent", "protos", "cli", "aggregator"))
ALL = 4 * (256 * 512 + 512 + 512 * 64 + 64)
"""Bytes of the model's parameters."""
LARGE = """
SELECT category, size_bytes FROM allocation
WHERE rank = 1 AND freed_ns IS NULL AND size_bytes > 8192 AND category IN ('parameter', 'optimizer_state')
ORDER BY ALL
"""
CATEGORIES = """
SELECT DISTINCT category, operator FROM allocation
WHERE step >= 2 AND size_bytes > 8192 AND operator IN ('aten::linear', 'aten::addmm', 'aten::relu')
ORDER BY ALL
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter of an empty environment over this one's packages."""
    return environment_over(tmp_path_factory.mktemp("sharded"))


def install(python: str, package: str, *options: str) -> None:
    """Installs it; where it cannot be, the test is skipped."""
    if why := not_installed(python, *options, package):
        pytest.skip(f"{package} cannot be installed here: {why}")


def recorded(python: str, folder: Path, script: str, *arguments: str) -> None:
    """Trains with and without; both print the same losses, and both ranks are whole."""
    given = {"PYTHONPATH": os.pathsep.join(ROOTS), "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    train = (python, *TORCHRUN[1:], "--nproc-per-node", "2", str(SCRIPTS / script), *arguments)
    run = (*RANKMEM, "run", "--db", "job.duckdb", "--no-diagnose", "--")
    losses = []
    for command in (train, (*run, *train)):
        done = call(command, folder, timeout_s=1000, **given)
        assert done.returncode == 0, done.stderr
        losses.append([line for line in done.stdout.splitlines() if line.startswith("loss ")])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5
    ranks = asked(folder, "SELECT rank, complete, events_lost FROM rank_overview ORDER BY rank")
    assert [tuple(row.values()) for row in ranks] == [(0, True, 0), (1, True, 0)]


def asked(folder: Path, sql: str) -> list[dict[str, Any]]:
    return rows(folder, "sql", sql, "--db", "job.duckdb")


def held(folder: Path) -> list[tuple[str, int]]:
    """Large blocks of parameters and optimizer state of rank 1 that live to the end."""
    return [(row["category"], row["size_bytes"]) for row in asked(folder, LARGE)]


def sharded(folder: Path) -> list[str | None]:
    """What whatif takes each rank to have sharded already."""
    answers = [
        json.loads(rankmem(folder, "whatif", "--db", "job.duckdb", "--rank", rank, "--format", "json"))
        for rank in "01"
    ]
    return [answer["figures"].get("sharded") for answer in answers]


def passing(folder: Path) -> set[tuple[str, str]]:
    """What large results of the model's own operators are known as."""
    return {(row["category"], row["operator"]) for row in asked(folder, CATEGORIES)}


@pytest.mark.parametrize(
    ("stage", "parameters", "told"),
    [
        ("1", [ALL // 2, ALL], "state"),
        ("2", [ALL // 2, ALL], "state"),
        ("3", [ALL // 2, ALL // 2], "parameters"),
    ],
)
def test_what_zero_holds_is_known(
    stage: str, parameters: list[int], told: str, python: str, tmp_path: Path
) -> None:
    """Each rank has half of the optimizer's state and copies, and in stage 3 half of the parameters."""
    install(python, DEEPSPEED, "--no-build-isolation")
    recorded(python, tmp_path, "with_zero.py", stage)
    state = [("optimizer_state", ALL // 2)] * 2
    assert held(tmp_path) == [*state, *(("parameter", size) for size in parameters)]
    assert passing(tmp_path) <= {
        ("activation", "aten::linear"), ("activation", "aten::addmm"), ("activation", "aten::relu"),
    }  # fmt: skip
    buffers = asked(
        tmp_path,
        "SELECT DISTINCT category FROM allocation WHERE size_bytes = 2000000000 AND operator = 'aten::empty'",
    )
    assert [row["category"] for row in buffers] == ["gradient"], "of the reduction"
    assert sharded(tmp_path) == [told] * 2
    weights = asked(tmp_path, "SELECT size_bytes, shape FROM weight WHERE rank = 1 ORDER BY name")
    assert [row["shape"] for row in weights] == ["[512]", "[512, 256]", "[64]", "[64, 512]"]
    assert sum(row["size_bytes"] for row in weights) == parameters[-1], "what the rank keeps between uses"


@pytest.mark.parametrize("stage", ["1", "3"])
def test_zero_s_steps_for_two_groups_of_parameters_are_one(stage: str, python: str, tmp_path: Path) -> None:
    install(python, DEEPSPEED, "--no-build-isolation")
    recorded(python, tmp_path, "with_zero.py", stage, "groups")
    steps = asked(tmp_path, "SELECT rank, count(*) AS n, any_value(optimizer) AS by FROM step GROUP BY rank")
    assert sorted(map(tuple, (row.values() for row in steps))) == [(0, 5, "AdamW"), (1, 5, "AdamW")]


@pytest.mark.parametrize("tensor_parallel", ["1", "2"])
def test_megatron_s_coordinates_and_buffers_are_known(
    tensor_parallel: str, python: str, tmp_path: Path
) -> None:
    install(python, MEGATRON)
    recorded(python, tmp_path, "with_megatron.py", tensor_parallel)
    places = asked(tmp_path, "SELECT dp, tp, pp, cp, ep FROM rank_info ORDER BY rank")
    second = {"dp": 1, "tp": 0} if tensor_parallel == "1" else {"dp": 0, "tp": 1}
    none = dict.fromkeys(("dp", "tp", "pp", "cp", "ep"), 0)
    assert places == [none, none | second]
    weights = [512 * 64 * 4, 256 * 512 * 4]
    assert held(tmp_path) == [
        *(("optimizer_state", size) for size in weights for _ in range(2)),
        *(("parameter", size) for size in weights),
    ]
    (buffer,) = asked(
        tmp_path, "SELECT category, size_bytes FROM allocation WHERE rank = 1 AND operator = 'aten::zeros' "
        f"AND size_bytes >= {ALL} AND freed_ns IS NULL",
    )  # fmt: skip
    assert buffer["category"] == "gradient"
    assert sharded(tmp_path) == ["nothing"] * 2


@pytest.mark.parametrize(("way", "told"), [("whole", "nothing"), ("distributed", "state")])
def test_whether_megatron_s_optimizer_is_distributed_is_known(
    way: str, told: str, python: str, tmp_path: Path
) -> None:
    install(python, MEGATRON)
    recorded(python, tmp_path, "with_megatron_optimizer.py", way)
    assert sharded(tmp_path) == [told] * 2


def test_deepspeed_without_zero_shards_nothing(python: str, tmp_path: Path) -> None:
    """Stage 0: its optimizer has the whole state."""
    install(python, DEEPSPEED, "--no-build-isolation")
    recorded(python, tmp_path, "with_zero.py", "0")
    assert sharded(tmp_path) == ["nothing"] * 2
