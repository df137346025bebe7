"""Checkpoints of modules whose input is not the last block, or whose calls share a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankmem_aggregator import connect

TRAINING = """
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

NET, IS_CHECKPOINTED = sys.argv[1], sys.argv[2] == "checkpoint"


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(4, 32)
        self.one, self.two = (nn.Conv2d(width, 16, 3, padding=1) for width in (32, 16))

    def forward(self, x):
        return self.two(functional.silu(self.one(functional.silu(self.norm(x)))))


class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.along = nn.Linear(32, 32), nn.Linear(64, 32)

    def forward(self, x):
        at = torch.arange(4000) % len(x)
        both = torch.cat([x[at], x[at.flip(0)]], 1)
        m = self.along(both).relu(); return (self.own(x) + x.index_add(0, at, m)).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1) if NET == "pictures" else nn.Linear(8, 32)
        self.blocks = nn.ModuleList((Up if NET == "pictures" else Edges)() for _ in range(4))

    def forward(self, x):
        x = kept = self.first(x)
        for block in self.blocks:
            if NET == "pictures":
                # As large as the output, and gone before backward.
                x = functional.interpolate(functional.avg_pool2d(x, 2), scale_factor=2)
                x = torch.cat([x, kept], 1)
            x = checkpoint(block, x, use_reentrant=False) if IS_CHECKPOINTED else block(x)
        return x


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(4):
    net(torch.randn(4, 3, 64, 64) if NET == "pictures" else torch.randn(400, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("net", ["pictures", "edges"])
def test_the_peak_with_checkpoints_is_that_of_a_training_with_them(net: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    peaks, told = {}, []
    for change in ("base", "checkpoint"):
        path = tmp_path / f"{change}.duckdb"
        command = [sys.executable, "-m", "rankmem_cli", "run", "--quiet", "--db", str(path), "--"]
        subprocess.run([*command, sys.executable, str(script), net, change], check=True, cwd=tmp_path)
        with connect(path) as queries:
            peaks[change] = queries.steps().to_pylist()[-1]["peak_bytes"]
            told += [row for row in queries.whatif().rows.to_pylist() if row["remedy"] == "checkpoint"][:1]
    assert peaks["checkpoint"] < 0.8 * peaks["base"]
    least, most = told[0]["peak_after_least_bytes"], told[0]["peak_after_bytes"]
    assert 0.99 * least <= peaks["checkpoint"] <= 1.01 * most
    assert most < 1.03 * peaks["checkpoint"]
