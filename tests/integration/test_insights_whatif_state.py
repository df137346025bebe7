"""Recorded trainings with state in 16 and 8 bits and on a host: what they held is from least to most."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import state_trainings
from rankmem_aggregator import connect
from rankmem_aggregator.insights.edits import Step
from rankmem_aggregator.insights.whatif import remedies_of
from rankmem_aggregator.insights.windows import place_of, read_window, step_sizes
from state_trainings import KEEPERS, STEPS


@pytest.mark.parametrize("base", ["at once", "momentum"])
def test_what_an_optimizer_that_keeps_its_state_otherwise_held_lies_within_what_is_told(
    base: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.duckdb"
    command = [sys.executable, "-m", "rankmem_cli", "run", "--no-diagnose", "--db", str(path), "--"]
    names = ["torch", *KEEPERS]
    script = str(Path(state_trainings.__file__))
    subprocess.run([*command, sys.executable, script, base, ",".join(names)], check=True)
    with connect(path) as queries:
        place = place_of(queries._ask, queries.session_id(), rank=None)
        sizes = step_sizes(queries._ask, place)
        assert len(sizes) == STEPS * len(names)
        step = Step.of_window(read_window(queries._ask, place, sizes[STEPS - 1]))
    told = {}
    for each in remedies_of(step, {}, 2):
        if each.least is not None:
            told[each.name] = [edit(step, step.lives()).peak()[0] for edit in (each.least, each.edit)]
    peaks = {name: sizes[STEPS * number - 1].peak_bytes for number, name in enumerate(names, 1)}
    for name, remedy in KEEPERS.items():
        least, most = told[remedy]
        assert least <= peaks[name] <= most, (name, least, peaks[name], most)
    # The bounds are reached: nothing is made where the host steps, and nearly the most without thought.
    assert peaks["host"] == pytest.approx(told["offload"][0], rel=0.001)
    if base != "momentum":
        assert peaks["bf16 careless"] == pytest.approx(told["state16"][1], rel=0.001)
    assert told["state8"][0] < told["state16"][0] < peaks["torch"]
