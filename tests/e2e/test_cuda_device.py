"""The tap on a real GPU: its events against the allocator's own history and statistics.

The work is in tests/bench/cuda_check.py, which runs in a process of its own: a tap stays attached for good.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
CHECK = Path(__file__).resolve().parents[1] / "bench" / "cuda_check.py"

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device and a CUDA build of torch"),
]


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, Any]]:
    command = [sys.executable, str(CHECK), "--json", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return {row["check"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "name",
    [
        "events equal _snapshot()",
        "replayed requested bytes",
        "COUNTERS equal memory_stats()",
        "PEAKS equal memory_stats()",
        "calls with a Python stack",
        "the other stream is seen",
        "out-of-memory",
        "facts of the device",
    ],
)
def test_the_tap_agrees_with_the_allocator(checks: dict[str, dict[str, Any]], name: str) -> None:
    assert checks[name]["ok"], checks[name]["detail"]
