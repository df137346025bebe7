"""Starts what the benchmarks measure, as a user would: an aggregator, trainings with and without rankmem.

Stage: outside the way of the data; every process is a child of the benchmark and ended by it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import psutil

from ports import free_port
from rankmem_agent.spool.election import LOCK_NAME, is_shipping

TRAINING: Final = Path(__file__).with_name("train_gpt.py")
START_S: Final = 30.0  # an aggregator opens its file and listens well within it
IDLE_S: Final = 1.5
IDLE_CPU_S: Final = 0.05  # its timers and threads that wait take less in so long
IDLE_MAX_S: Final = 60.0
STOP_S: Final = 60.0  # it commits what is queued, then leaves

OWN_NAMES: Final = ("RANKMEM_", "TORCHELASTIC_", "OMP_NUM_THREADS")
"""Left out of a child's environment: a benchmark measures its own settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregator:
    """A running aggregator process."""

    process: psutil.Popen
    address: str
    database: Path

    def cpu_s(self) -> float:
        """CPU seconds that it has used."""
        return cpu_s(self.process)

    def idle_cpu_s(self) -> float:
        """The same once it has nothing left to do: summaries and checkpoints come after what they are of."""
        used, until = self.cpu_s(), time.monotonic() + IDLE_MAX_S
        while time.monotonic() < until:
            time.sleep(IDLE_S)
            before, used = used, self.cpu_s()
            if used - before < IDLE_CPU_S:
                break
        return used


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process that runs, in user and kernel."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def aggregator(database: Path, settings: Mapping[str, str] | None = None) -> Iterator[Aggregator]:
    """An aggregator on a free port of loopback; stopped by its first signal, so that it drains.

    Args:
        database: its file; its log is written beside it.
        settings: variables of its environment; with ``RANKMEM_SERVE_LAKE`` it writes that, and no file.
    """
    address, given = f"127.0.0.1:{free_port()}", dict(settings or {})
    place = {} if "RANKMEM_SERVE_LAKE" in given else {"RANKMEM_DB": str(database)}
    env = environment({**place, "RANKMEM_LISTEN": address, **given})
    with database.with_suffix(".log").open("wb") as log:
        command = [sys.executable, "-m", "rankmem_aggregator"]
        process = psutil.Popen(command, stdout=log, stderr=log, env=env)
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=START_S)
        yield Aggregator(process=process, address=address, database=database)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(STOP_S)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without settings of ours and torchrun's, and one thread for torch."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_NAMES)}
    return {**kept, "OMP_NUM_THREADS": "1", **(extra or {})}


def recording_environment(address: str, spool_folder: Path) -> dict[str, str]:
    """What makes ``-m rankmem_agent`` record everything and ship to ``address``."""
    return environment(
        {"RANKMEM_AGGREGATOR": address, "RANKMEM_SPOOL_DIR": str(spool_folder), "RANKMEM_DRAIN_S": "60"}
    )


def train(
    before: Sequence[str],
    arguments: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    script: Path = TRAINING,
) -> dict[str, Any]:
    """Runs the training as ``python BEFORE… train_gpt.py ARGUMENTS…``, or another script; what it measured.

    Raises:
        RuntimeError: it failed; the message holds the end of what it wrote.
    """
    out = folder / "steps.json"
    command = [sys.executable, *before, str(script), *arguments, "--out", str(out)]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the training ended with {done.returncode}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(out.read_text())
    out.unlink()
    return {**result, "stderr": done.stderr}


def torchrun(ranks: int) -> list[str]:
    """Arguments of python that start this many workers on this host; a free port, so that runs can follow."""
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def wait_until_quiet(folder: Path, timeout_s: float = 60.0) -> None:
    """Waits until everything below ``folder`` is acknowledged and its shippers are gone: nothing runs on.

    Raises:
        RuntimeError: that took longer than ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    while any(folder.rglob("control")) or any(is_shipping(lock.parent) for lock in folder.rglob(LOCK_NAME)):
        if time.monotonic() > until:
            raise RuntimeError("the shipper did not deliver everything")
        time.sleep(0.05)
