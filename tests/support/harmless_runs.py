"""Runs of small trainings with and without the agent, for the end-to-end tests that compare them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ports import free_port
from rankmem_agent.preload.launch import environment
from rankmem_agent.spool import places
from rankmem_agent.spool.layout import Kind
from rankmem_ship.spool_reader.reader import Chunk, SpoolReader

SCRIPTS = Path(__file__).parents[1] / "e2e/training_scripts"
SESSION = "1ng35yz7rzsj"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
TIMEOUT_S = 200  # one run on an idle machine takes 5 s


@dataclass(frozen=True)
class Run:
    """A program's exit code and output."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Spool:
    """The contents of one rank's spool."""

    name: str
    ended: bool
    events: int
    lost: int
    steps: int


def without_agent(command: Sequence[str], *, cwd: Path | None = None, **settings: str) -> Run:
    """Runs a command as if rankmem were not installed."""
    return _run(command, _base() | settings, cwd)


def preloaded(command: Sequence[str], folder: Path, *, cwd: Path | None = None, **settings: str) -> Run:
    """Runs a command as ``rankmem run`` would, with spools below ``folder`` and no aggregator."""
    return _run(command, preloaded_env(folder) | settings, cwd)


def preloaded_env(folder: Path) -> dict[str, str]:
    """The environment of :func:`preloaded`."""
    base = environment(
        _base(), session_id=SESSION, aggregator=f"127.0.0.1:{free_port()}", spool_dir=folder / "spool"
    )
    return base | {"RANKMEM_SHIP_DRAIN_S": "1"}


def script(name: str, *arguments: str) -> list[str]:
    """The command of a training script in a plain process."""
    return [sys.executable, str(SCRIPTS / name), *arguments]


def spools(folder: Path) -> list[Spool]:
    """The spools that runs with ``folder`` left, by name, as ``rankmem run`` finds them at its end."""
    for session_dir in (folder / "spool").glob("*/"):
        places.settle(session_dir)
    return [_read(path) for path in sorted((folder / "spool").glob("*/*-*-*/"))]


def _base() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKMEM_")}
    if "RANKMEM_TAP_CACHE" in os.environ:
        kept["RANKMEM_TAP_CACHE"] = os.environ["RANKMEM_TAP_CACHE"]
    root = Path(__file__).resolve().parents[2]
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([f"{root}/agent", f"{root}/protos"])}


def _run(command: Sequence[str], env: dict[str, str], cwd: Path | None = None) -> Run:
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    return Run(done.returncode, done.stdout, done.stderr)


def _read(path: Path) -> Spool:
    reader = SpoolReader(path)
    kinds = np.zeros(256, np.int64)
    lost = 0
    while (part := reader.read(1 << 20)) is not None:
        if isinstance(part, Chunk):
            kinds += np.bincount(part.records["kind"], minlength=256)
        else:
            lost += 1
    spool = Spool(path.name, reader.ended, int(kinds[Kind.EVENT]), lost, int(kinds[Kind.STEP]))
    reader.close()
    return spool
