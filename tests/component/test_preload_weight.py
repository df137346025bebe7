"""What the agent brings into a trainer's process: its own modules, and next to nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

MODULES_MAX: Final = 80
SOURCE_BYTES_MAX: Final = 445_000
SCRIPT: Final = """
import json, sys
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
json.dump(sorted(sys.modules), open(sys.argv[1], "w"))
"""


def _modules(folder: Path, *options: str) -> set[str]:
    script, out = folder / "train.py", folder / "modules.json"
    script.write_text(SCRIPT)
    environment = {**os.environ, "RANKMEM_SPOOL_DIR": str(folder / "spool")}
    command = [sys.executable, *options, str(script), str(out)]
    subprocess.run(command, env=environment, check=True, timeout=120, cwd=folder)
    return set(json.loads(out.read_text()))


def test_a_recorded_training_loads_our_modules_and_no_others(tmp_path: Path) -> None:
    brought = _modules(tmp_path, "-m", "rankmem_agent") - _modules(tmp_path)
    ours = {name for name in brought if name.partition(".")[0] in ("rankmem_agent", "rankmem_protos")}
    assert "rankmem_agent.tap.library" in ours  # it was recorded
    assert brought - ours <= {"encodings.ascii"}
    assert len(ours) <= MODULES_MAX
    origins = [spec.origin for name in ours if (spec := find_spec(name)) and spec.origin]
    assert sum(Path(origin).stat().st_size for origin in origins) <= SOURCE_BYTES_MAX
