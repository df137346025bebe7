"""A training with torch_npu in its process is recorded through the history of that package's allocator.

The package is a stand-in (``npu_stand_in``): no device of the kind was ever tried.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from main_job import RUN, ask, call, rows

pytestmark = pytest.mark.timeout(600)
STAND_IN = Path(__file__).with_name("npu_stand_in")
SCRIPT = """
import json, sys, torch
if len(sys.argv) > 1:
    import torch_npu
    torch_npu.autoload()
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters())
from torch_npu import allocator
torch.npu.init()
kept = []
for step in range(6):
    net(torch.ones(2, 8)).sum().backward()
    first, second = allocator.alloc(1024 * (step + 1)), allocator.alloc(512)
    allocator.free(second)
    kept.append(first)
    optimizer.step()
events = [(e["action"], e["addr"], e["size"]) for e in allocator.ring if e["action"] != "snapshot"]
print(json.dumps({"events": events, "peak": allocator.peak}))
"""


def recorded(folder: Path, *arguments: str, autoload: str = "1") -> tuple[dict[str, object], str]:
    """What the script printed, and what was said beside it."""
    package = folder / "site" / "torch_npu-0.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 0.0\n")
    (package / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:autoload\n")
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    path = os.pathsep.join([str(STAND_IN), str(package.parent)])
    variables = {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = call((*RUN, "--", sys.executable, str(script), *arguments), folder, timeout_s=300, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0]), done.stderr


def test_every_event_of_the_allocator_is_recorded_with_its_step(tmp_path: Path) -> None:
    told, said = recorded(tmp_path)
    assert "NPU is recorded through PyTorch's memory history, as rankmem has no tap for it" in said
    statement = "SELECT action, address, size_bytes FROM memory_event WHERE device = 'npu:0' ORDER BY seq"
    found = rows(tmp_path, "sql", statement)
    assert [[row["action"], row["address"], row["size_bytes"]] for row in found] == told["events"]
    (peak,) = rows(tmp_path, "peak")
    assert (peak["device"], peak["peak_requested_bytes"]) == ("npu:0", told["peak"])
    made = rows(tmp_path, "sql", "SELECT step, size_bytes FROM allocation WHERE freed_ns IS NULL ORDER BY 1")
    assert [(row["step"], row["size_bytes"]) for row in made] == [(n, 1024 * (n + 1)) for n in range(6)]


def test_a_package_that_comes_late_is_a_gap_in_every_answer(tmp_path: Path) -> None:
    _, said = recorded(tmp_path, "late", autoload="0")
    assert "memory of NPU devices is not recorded: NPU was not there yet as recording began" in said
    (gap,) = rows(tmp_path, "sql", "SELECT what, detail, to_end FROM gap")
    why = "NPU was not there yet as recording began"
    assert gap == {"what": "npu events", "detail": why, "to_end": True}
    assert f"rank 0: npu events were not recorded ({why})" in ask(tmp_path, "peak").output
