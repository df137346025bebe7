"""Fit where sparse gradients, data beside the model or other kernels follow the batch: bounds hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmem_aggregator import connect
from rankmem_aggregator.insights.fit_model import CHANGING_SHARE

TRAINING = """
import sys

import torch
from torch import nn

kind, batch = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
if kind == "sparse":
    tables = [nn.EmbeddingBag(5000, 32, mode="sum", sparse=True) for _ in range(4)]
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    parameters = [*model.parameters(), *(each.weight for each in tables)]
    optimizer = torch.optim.SGD(parameters, 0.1)
    for _ in range(5):
        rows = [table(torch.randint(5000, (batch, 8))) for table in tables]
        model(torch.cat(rows, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
elif kind == "penalty":
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Tanh(), nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        x = torch.randn(batch, 3, 24, 24, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        collected = torch.randn(8 * batch, 32) * 2
        for part in collected.split(batch):
            model(part).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""

Record = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("beside")
    script = folder / "train.py"
    script.write_text(TRAINING)

    def recorded(kind: str, batch: int) -> Path:
        path = folder / f"{kind}-{batch}.duckdb"
        command = [sys.executable, "-m", "rankmem_cli", "run", "--quiet", "--db", str(path), "--"]
        subprocess.run([*command, sys.executable, str(script), kind, str(batch)], check=True, cwd=folder)
        return path

    return recorded


@pytest.mark.parametrize("kind", ["sparse", "collected"])
def test_what_may_follow_the_batch_beside_the_model_is_within_the_bounds(kind: str, record: Record) -> None:
    with connect(record(kind, 64)) as queries:
        answer = queries.fit(batch=["4x"])
    with connect(record(kind, 256)) as queries:
        real = queries.steps().to_pylist()[-1]["peak_bytes"]
    told = answer.rows.to_pylist()[-1]["live_peak_bytes"]
    below, above = (answer.figures[f"{which}_share"] for which in ("below", "above"))
    assert told * 1.01 < real, "more than an upper bound may be off"
    assert told * (1 - below) <= real <= told * (1 + above)
    assert "upper bound" not in answer.error
    assert "what is made beside the model" in answer.error


def test_second_derivatives_of_convolutions_widen_the_bounds_of_two_sizes(record: Record) -> None:
    with connect(record("penalty", 4)) as queries, connect(record("penalty", 8)) as other:
        answer = queries.fit(batch=[32], others=[other])
    with connect(record("penalty", 32)) as queries:
        real = queries.steps().to_pylist()[-1]["peak_bytes"]
    told = answer.rows.to_pylist()[-1]["live_peak_bytes"]
    below, above = (answer.figures[f"{which}_share"] for which in ("below", "above"))
    assert below == above == CHANGING_SHARE
    assert told * (1 - below) <= real <= told * (1 + above)
    assert "second derivatives of convolutions" in answer.error
