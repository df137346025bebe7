"""What grows while a training runs long: memory, files and threads of trainer, shipper and aggregator.

One rank trains at full speed (``--seconds``, ten minutes unless said) with everything recorded. Its processes
are looked at every few seconds. What they hold at the end is set beside what they held after a tenth of the
time. At a hundred steps a second an hour has as many as four days of a training with a step a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from harness import Figure, Options, main, say
from processes import aggregator, recording_environment, wait_until_quiet

from rankmem_aggregator import connect

TRAINING: Final = Path(__file__).with_name("train_long.py")
SECONDS: Final = 600.0
SECONDS_QUICK: Final = 60.0
LOOKS: Final = 200
SETTLED_SHARE: Final = 0.1
AROUND: Final = 5
"""Looks that a figure is the median of: a worker that was just forked counts for one."""
GROWTH_MAX: Final = 1.05
DELIVERED_S: Final = 600.0
TRAINER: Final = "trainer"
SHIPPER: Final = "shipper"
AGGREGATOR: Final = "aggregator"
STORED: Final = "SELECT count(*) AS events FROM memory_event"
LOST: Final = "SELECT coalesce(sum(records), 0)::BIGINT AS records FROM gap"


@dataclass(frozen=True, slots=True)
class Look:
    """A process at an instant."""

    private_bytes: int
    num_files: int
    num_threads: int


def measure(options: Options) -> Sequence[Figure]:
    """Trains and looks."""
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    spools, database, out = options.folder / "spool", options.folder / "long.duckdb", options.folder / "steps"
    looks: dict[str, list[Look]] = {TRAINER: [], SHIPPER: [], AGGREGATOR: []}
    command = [sys.executable, "-m", "rankmem_agent", str(TRAINING), "--seconds", str(seconds)]
    with aggregator(database) as serving:
        env = recording_environment(serving.address, spools)
        with subprocess.Popen([*command, "--out", str(out)], env=env) as training:
            while training.poll() is None:
                for name, process in _processes(training.pid, serving.process, spools):
                    if (look := _look(process)) is not None:
                        looks[name].append(look)
                time.sleep(seconds / LOOKS)
        if training.returncode:
            raise RuntimeError(f"the training ended with {training.returncode}")
        say("delivering")
        wait_until_quiet(spools, DELIVERED_S)
        with connect(serving.address) as memory:
            stored, lost = memory.sql(STORED).to_pylist()[0], memory.sql(LOST).to_pylist()[0]
    figures = [
        Figure(what="steps taken", value=json.loads(out.read_text())["steps"]),
        Figure(what="events stored", value=stored["events"] / 1e6, unit="million"),
        Figure(what="records lost, for the spool was full", value=lost["records"] / 1e6, unit="million"),
    ]
    return [*figures, *(figure for name in looks for figure in _growth(name, looks[name]))]


def _processes(trainer: int, serving: psutil.Process, spools: Path) -> Sequence[tuple[str, psutil.Process]]:
    """The trainer, its shipper, and the child of ``rankmem serve`` that does its work."""
    found = [(AGGREGATOR, child) for child in serving.children()] or [(AGGREGATOR, serving)]
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if "rankmem_ship" in words and any(word.startswith(str(spools)) for word in words):
            found.append((SHIPPER, process))
        elif process.pid == trainer:
            found.append((TRAINER, process))
    return found


def _look(process: psutil.Process) -> Look | None:
    try:
        with process.oneshot():
            return Look(process.memory_full_info().uss, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None  # it has just ended


def _growth(name: str, looks: Sequence[Look]) -> list[Figure]:
    settled = int(len(looks) * SETTLED_SHARE)
    early, late = (_middle(part) for part in (looks[settled:][:AROUND], looks[-AROUND:]))
    bound = {} if name == AGGREGATOR else {"at_most": GROWTH_MAX}  # DuckDB's cache fills up to its limit
    note = f"{early.private_bytes / 2**20:.0f} to {late.private_bytes / 2**20:.0f} MiB"
    growth = late.private_bytes / early.private_bytes
    return [
        Figure(what=f"{name}: memory of its own, end to early", value=growth, note=note, **bound),
        Figure(what=f"{name}: files more", value=late.num_files - early.num_files),
        Figure(what=f"{name}: threads more", value=late.num_threads - early.num_threads),
    ]


def _middle(looks: Sequence[Look]) -> Look:
    def middle(values: Sequence[int]) -> int:
        return sorted(values)[len(values) // 2]

    return Look(
        middle([look.private_bytes for look in looks]),
        middle([look.num_files for look in looks]),
        middle([look.num_threads for look in looks]),
    )


if __name__ == "__main__":
    main("long_run", "what grows while a training runs long", measure)
