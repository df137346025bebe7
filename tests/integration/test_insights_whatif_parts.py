"""A training that accumulates gradients itself, with and without a remedy: what is told is what it held."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmem_aggregator import connect

TRAINING = """
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CHECKPOINTED, KEPT = (name in sys.argv for name in ("checkpoint", "kept"))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 512), nn.Linear(512, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(5))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if CHECKPOINTED else block(x)
        return self.head(x)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(5):
    for _ in range(2):
        (net(torch.randn(600, 128)).square().mean() / 2).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=not KEPT)
"""

Record = Callable[..., Path]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("parts")
    script = folder / "train.py"
    script.write_text(TRAINING)

    def recorded(*changes: str) -> Path:
        path = folder / f"{'-'.join(changes) or 'plain'}.duckdb"
        if not path.exists():
            command = [sys.executable, "-m", "rankmem_cli", "run", "--quiet", "--db", str(path), "--"]
            subprocess.run([*command, sys.executable, str(script), *changes], check=True, cwd=folder)
        return path

    return recorded


def peak_bytes(path: Path) -> int:
    with connect(path) as queries:
        return int(queries.steps().to_pylist()[-1]["peak_bytes"])


@pytest.mark.parametrize(
    ("before", "remedy", "after"),
    [((), "checkpoint", ("checkpoint",)), (("kept",), "set-to-none", ())],
    ids=["checkpoint", "set-to-none"],
)
def test_a_remedy_of_a_step_in_parts_is_done_in_each_part(
    before: tuple[str, ...], remedy: str, after: tuple[str, ...], record: Record
) -> None:
    with connect(record(*before)) as queries:
        (row,) = [each for each in queries.whatif().rows.to_pylist() if each["remedy"] == remedy]
    real = peak_bytes(record(*after))
    assert row["peak_after_least_bytes"] == pytest.approx(real, rel=0.005)
    assert row["peak_after_bytes"] == pytest.approx(real, rel=0.005)
