"""The optimizer's scratch: what is made of a training tensor by tensor is what one at once held, and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import scratch_trainings
from rankmem_aggregator import connect
from rankmem_aggregator.insights.as_cuda import optimizer_at_once, stepped_alone
from rankmem_aggregator.insights.edits import Step, one_at_a_time
from rankmem_aggregator.insights.windows import (
    Window,
    place_of,
    read_window,
    step_sizes,
)
from scratch_trainings import OPTIMIZERS, STEPS


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Window]:
    """The last step with each optimizer."""
    path = tmp_path_factory.mktemp("scratch") / "job.duckdb"
    command = [sys.executable, "-m", "rankmem_cli", "run", "--no-diagnose", "--db", str(path), "--"]
    subprocess.run([*command, sys.executable, str(Path(scratch_trainings.__file__))], check=True)
    with connect(path) as queries:
        place = place_of(queries._ask, queries.session_id(), rank=None)
        sizes = step_sizes(queries._ask, place)
        return {
            name: read_window(queries._ask, place, sizes[STEPS * number - 1])
            for number, name in enumerate(OPTIMIZERS, 1)
        }


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_the_scratch_of_all_tensors_at_once_follows_from_a_run_tensor_by_tensor(
    windows: dict[str, Window], name: str
) -> None:
    alone, real = windows[f"{name} alone"], windows[f"{name} at once"]
    assert stepped_alone(alone).any()
    assert not stepped_alone(real).any()
    made, sizes = optimizer_at_once(alone, alone.bytes)
    assert made.peak(sizes)[0] == pytest.approx(real.peak()[0], rel=0.001)
    assert real.peak()[0] != pytest.approx(alone.peak()[0], rel=0.01)


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_the_peak_tensor_by_tensor_follows_from_a_run_at_once(windows: dict[str, Window], name: str) -> None:
    step = Step.of_window(windows[f"{name} at once"])
    assert one_at_a_time()(step, step.lives()).peak()[0] == pytest.approx(
        windows[f"{name} alone"].peak()[0], rel=0.005
    )
