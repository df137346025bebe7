"""The command line as a user calls it, for the end-to-end tests of the main job."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from ending import outputs
from rankmem_cli.main import app

TRAIN = Path(__file__).parents[1] / "e2e" / "main_job_train.py"
RANKMEM = (sys.executable, "-m", "rankmem_cli")
RUN = (*RANKMEM, "run", "--no-diagnose")
"""``rankmem run`` without the line of its first finding, which costs as much CPU time as a training here: for
tests that do not look at it."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
TIMEOUT_S = 240
"""For one command; a loaded machine takes a quarter of it."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The variables of a command whose spools lie below ``folder``, with nothing of rankmem's inherited."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKMEM_")}
    kept |= {"OMP_NUM_THREADS": "1", "RANKMEM_SPOOL_DIR": str(folder / "spool"), "NO_COLOR": "1"}
    kept["PYTHONFAULTHANDLER"] = "1"  # for ending.py
    if "RANKMEM_TAP_CACHE" in os.environ:
        kept["RANKMEM_TAP_CACHE"] = os.environ["RANKMEM_TAP_CACHE"]
    return kept | more


def call(
    command: Sequence[str],
    folder: Path,
    *,
    text_in: str | None = None,
    timeout_s: float = TIMEOUT_S,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a command in ``folder`` to its end."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder, **variables),
        stdin=subprocess.DEVNULL if text_in is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        ((out, said),) = outputs([run], timeout_s, text_in)
    return subprocess.CompletedProcess(command, run.returncode, out, said)


def ask(folder: Path, *arguments: str) -> Result:
    """Runs a reading verb that must succeed, in this process: it says what a process of its own says, without
    the second that one takes to start."""
    wanted: dict[str, str | None] = {**dict.fromkeys(os.environ), **environment(folder)}
    with contextlib.chdir(folder):
        done = CliRunner(env=wanted).invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done


def rankmem(folder: Path, *arguments: str) -> str:
    """The stdout of a reading verb that must succeed."""
    return ask(folder, *arguments).stdout


def rows(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows of a reading verb, through its JSON."""
    found: list[dict[str, Any]] = json.loads(rankmem(folder, *arguments, "--format", "json"))
    return found
