"""Trainings under ``rankmem run``, as a user would start them, and what the database has of them.

Stage: outside the way of the data; in the process of a check.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu.checks import Place

if TYPE_CHECKING:
    from rankmem_aggregator.query.queries import Queries

TRAIN: Final = Path(__file__).with_name("train.py")
RANKMEM: Final = (sys.executable, "-m", "rankmem_cli")
STEPS_ON_CPU: Final = 3
STDERR_CHARS: Final = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A training that was recorded."""

    database: Path
    told: dict[str, Any]
    """What the training wrote of itself; empty where it did not get so far."""
    stderr: str
    returncode: int

    @contextmanager
    def queries(self) -> Iterator[Queries]:
        """The database, opened."""
        from rankmem_aggregator import connect

        with connect(self.database) as opened:
            yield opened


def record(
    place: Place,
    workload: str,
    name: str,
    *arguments: str,
    launcher: Sequence[str] = (),
    settings: str = "",
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    fails: bool = False,
) -> Recorded:
    """Trains a workload under ``rankmem run``.

    Args:
        name: of the database, in the place's folder.
        arguments: of train.py.
        launcher: between the interpreter and the script, as ``-m torch.distributed.run``.
        settings: PYTORCH_CUDA_ALLOC_CONF.
        options: of rankmem run.
        fails: whether the training is meant to fail.

    Raises:
        RuntimeError: it failed and was not meant to, or the other way round.
    """
    database, out = place.folder / f"{name}.duckdb", place.folder / f"{name}.json"
    command = [*RANKMEM, "run", "--db", str(database), "--no-diagnose", *options, "--"]
    command += [sys.executable, *launcher, *training(place, workload, out, *arguments)]
    done = run(command, {"PYTORCH_CUDA_ALLOC_CONF": settings} | dict(env or {}))
    if (done.returncode != 0) != fails:
        raise RuntimeError(f"{workload} ended with {done.returncode}: {done.stderr[-STDERR_CHARS:]}")
    told = json.loads(out.read_text()) if out.exists() else {}
    return Recorded(database=database, told=told, stderr=done.stderr, returncode=done.returncode)


def training(place: Place, workload: str, out: Path, *arguments: str) -> list[str]:
    """The script and its arguments; in a rehearsal few steps, whatever was asked for."""
    given = [str(TRAIN), workload, "--device", place.device, "--out", str(out), *arguments]
    if not place.on_gpu:
        given += ["--steps", str(STEPS_ON_CPU)]
    return given


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command; empty variables are taken out of its environment."""
    changed = os.environ | dict(env or {})
    kept = {name: value for name, value in changed.items() if value}
    print(f"$ {' '.join(command)}", flush=True)  # before: it may not end
    done = subprocess.run(list(command), env=kept, capture_output=True, text=True, check=False)
    print(f"{done.stdout}\n{done.stderr}", flush=True)
    return done


EVENTS: Final = """
SELECT
    action, address, size_bytes, stream, pool, requested_bytes, allocated_bytes, reserved_bytes, active_bytes
FROM memory_event WHERE rank = $rank AND device = $device ORDER BY attempt, seq
"""
FACTS: Final = "SELECT * FROM rank_info ORDER BY attempt, rank"
DEVICES: Final = "SELECT * FROM device_info ORDER BY attempt, rank, device"
GAPS: Final = "SELECT why, what, detail, records FROM gap ORDER BY rank, sequence_first"
SAMPLES: Final = """
SELECT app_reserved_bytes, device_used_bytes FROM process_sample WHERE device = $device ORDER BY rank, seq
"""


def events_of(queries: Queries, device: str, rank: int = 0) -> list[tuple[Any, ...]]:
    """Rows of EVENTS, in order."""
    rows = queries.sql(EVENTS, {"rank": rank, "device": device}).to_pylist()
    return [tuple(row.values()) for row in rows]
