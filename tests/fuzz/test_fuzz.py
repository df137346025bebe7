"""The fuzzers, each for a few seconds; RANKMEM_FUZZ_S makes them longer, RANKMEM_FUZZ_SEED draws otherwise.

Without it the seed is fixed: what fails here was broken by a change. Chance is for long runs.

Each is a process of its own: a crash of a library is a failed test, and its memory is its own. The totals are
printed (``pytest -s``); docs/security.md has those of long runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("RANKMEM_FUZZ_S", "6"))
SEED = int(os.environ.get("RANKMEM_FUZZ_SEED", "1"))
SLACK_S = 240.0  # for the start, the questions at the end, and a busy machine
HIGHEST_MIB = 1500  # a bomb would be gigabytes; DuckDB alone may have 512


@pytest.mark.parametrize(
    ("program", "must_have"),
    [
        ("fuzz_port", ["ack", "refusal", "good batches", "questions answered"]),
        ("fuzz_spools", ["delivered", "refused", "rows"]),
        ("fuzz_wire", ["damaged refused", "odd refused", "odd stored", "questions answered"]),
    ],
)
def test_what_nobody_sends_ends_in_a_refusal_or_in_rows_that_every_view_can_read(
    program: str, must_have: list[str]
) -> None:
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, str(folder / f"{program}.py"), str(SECONDS), str(SEED)],
        capture_output=True,
        text=True,
        timeout=SECONDS + SLACK_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), *sys.path])},
    )
    assert done.returncode == 0, f"seed {SEED}: {done.stderr[-3000:]}"
    totals = json.loads(done.stdout.splitlines()[-1])
    print(f"{program}, {SECONDS:g} s, seed {SEED}: {totals}")
    assert all(totals.get(name, 0) > 0 for name in must_have), totals
    assert totals["highest MiB"] < HIGHEST_MIB
