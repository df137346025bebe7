"""An inference has steps, one for each call of the model, and what the model was given in each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from main_job import RUN, call, rows

pytestmark = pytest.mark.timeout(900)
SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x, mask=None):
        return self.second(torch.relu(self.first(x)))
net = Net().eval()
found = []
with torch.inference_mode():
    for size in range(1, 7):
        out = net(torch.ones(size, 64), mask=torch.ones(size, dtype=torch.bool))
        found.append(out.softmax(-1).argmax(-1))
print(sum(len(each) for each in found))
"""


def test_each_call_of_the_model_is_a_step_with_its_inputs(tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = call((*RUN, "--", sys.executable, str(script)), tmp_path, timeout_s=600)
    assert (done.returncode, done.stdout) == (0, "21\n"), done.stderr
    steps = rows(tmp_path, "steps")
    assert [(row["step"], row["optimizers"]) for row in steps] == [(n, ["model call"]) for n in range(6)]
    peaks = [row["peak_bytes"] for row in steps[1:]]
    assert peaks == sorted(set(peaks)), "the batch grows"
    given = rows(tmp_path, "sql", "SELECT * FROM step_input ORDER BY seq, argument")
    assert [(row["step"], row["argument"], row["dtype"], row["shape"]) for row in given] == [
        each
        for step in range(6)
        for each in ((step, "0", "float32", f"[{step + 1}, 64]"), (step, "mask", "bool", f"[{step + 1}]"))
    ]
    assert {(row["module"], row["with_grad"], row["num_left_out"]) for row in given} == {("Net", False, 0)}
    assert {row["call_bytes"] for row in given} == {size * 257 for size in range(1, 7)}
