"""Trainings by a CUDA build of torch on a device that is none: the recording against the allocator's history.

The checks are those for a GPU (``tests/gpu``), on stand-ins for CUDA's libraries: memory is handed out and
nothing computed. What only a driver knows is left out. The build must be for this Python; see ``fake_cuda``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import matrix_stand_ins
from fake_cuda import WHY, trainable_dirs

RUN = Path(__file__).parents[1] / "gpu" / "run.py"
DEVICE_BYTES = 80 * 10**9
OF_A_DRIVER = ("samples", "driver", "ledger")
TORCH = trainable_dirs()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not TORCH, reason=f"{WHY}: one for CUDA 13 and this Python"),
]


@pytest.mark.parametrize("torch_dir", TORCH, ids=str)
@pytest.mark.parametrize(
    "check",
    [
        "exact/gpt", "exact/streams", "exact/expandable", "exact/pinned", "exact/inference", "exact/part",
        "exact/auto", "steady/unwatched_gpt",
        "source/default", "source/retry", "source/collected", "source/streams", "source/gpt",
        "source/as_cuda", "history/gpt", "history/chain",
    ],
)  # fmt: skip
def test_what_is_recorded_is_what_the_allocator_did(check: str, torch_dir: Path, tmp_path: Path) -> None:
    device = matrix_stand_ins.provide_device(torch_dir, tmp_path, platform.machine(), DEVICE_BYTES)
    done = subprocess.run(
        [sys.executable, str(RUN), check, "--out", str(tmp_path / "out")],
        env={**os.environ, **device, "PYTHONPATH": str(torch_dir.parent)},
        capture_output=True, text=True, timeout=450, check=False,
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    found = {row["check"].partition(": ")[2]: row for row in rows if row["ok"] is not None}
    judged = {what: row for what, row in found.items() if not what.startswith(OF_A_DRIVER)}
    assert judged, done.stdout + done.stderr
    assert {what: row for what, row in judged.items() if not row["ok"]} == {}
