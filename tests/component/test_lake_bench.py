"""The lake's benchmark in small: a lake of a synthetic job answers as its database. It measures nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "bench" / "lake_equal.py"


def test_a_lake_of_a_synthetic_job_answers_as_its_database() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("| met of ") == 2, done.stdout
