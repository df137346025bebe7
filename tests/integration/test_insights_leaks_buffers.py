"""Trainings that replace a module's buffer in each step: a leak where the old one is kept, else none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer

TRAINING = """
import torch
from torch import nn

KEPT = []


class Scaled(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width, width))

    def forward(self, x):
        return torch.relu(self.up(x)) * self.scale


def main():
    torch.manual_seed(0)
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = torch.randn(64, 64)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        before = model.scale
        # KEEP
        # REPLACE


main()
"""
NEW = "(0.9 * before + x.square())"
BUFFER_BYTES = 64 * 64 * 4


def leaks_of(folder: Path, keep: str, replace: str, steps: int = 70) -> Answer:
    """What is said of the training that keeps and replaces its buffer so."""
    script = folder / "train.py"
    text = TRAINING.replace("STEPS", str(steps)).replace("# KEEP", keep).replace("# REPLACE", replace)
    script.write_text(text)
    database = folder / "run.duckdb"
    command = [sys.executable, "-m", "rankmem_cli", "run", "--quiet", "--db", str(database), "--"]
    subprocess.run([*command, sys.executable, str(script)], check=True, cwd=folder)
    with connect(database) as queries:
        return queries.leaks()


def line_of(folder: Path, text: str) -> str:
    lines = (folder / "train.py").read_text().splitlines()
    return f"train.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


@pytest.mark.parametrize(
    ("keep", "replace"),
    [
        ("KEPT.append(before)", f"model.register_buffer('scale', {NEW})"),
        ("KEPT.append(lambda before=before: before.sum())", f"model.scale = {NEW}"),
    ],
    ids=["in a list", "in a closure"],
)
def test_a_buffer_that_is_replaced_and_kept_leaks_at_the_line_that_makes_it(
    keep: str, replace: str, tmp_path: Path
) -> None:
    answer = leaks_of(tmp_path, keep, replace)
    assert (answer.verdict, answer.certainty) == ("finding", "predicted")
    (leak,) = answer.rows.to_pylist()
    assert (leak["line"], leak["operator"]) == (line_of(tmp_path, NEW), "aten::add")
    assert leak["bytes_per_step"] == BUFFER_BYTES


@pytest.mark.parametrize("replace", [f"model.register_buffer('scale', {NEW})", f"model.scale = {NEW}"])
def test_a_buffer_that_is_only_replaced_is_no_leak(replace: str, tmp_path: Path) -> None:
    answer = leaks_of(tmp_path, "pass", replace)
    assert (answer.verdict, answer.rows.num_rows) == ("fine", 0)
