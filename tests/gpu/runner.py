"""Runs checks one after the other, each in a process of its own, within a time limit for all of them.

Stage: outside the way of the data. A check that crashes or hangs leaves a row that says so, and the next one
begins. The check's process writes its rows itself, as it finds them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu.checks import Check, Place
from gpu.rows import Row, append, read

OVER: Final = "stopped as the time for all was over"
LAST_CHARS: Final = 1500
"""Of what a failed check wrote, in its row; the log has all of it."""
BEGUN_SHARE: Final = 0.5
"""Of its limit, a check that is begun has so much time at least; none is known to take more on a GPU."""
RUN: Final = Path(__file__).with_name("run.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The folder of the results: few files, none large, none in a folder below it."""

    folder: Path

    @property
    def rows(self) -> Path:
        """A line of JSON a row."""
        return self.folder / "results.jsonl"

    @property
    def log(self) -> Path:
        """What the checks wrote."""
        return self.folder / "log.txt"

    @property
    def table(self) -> Path:
        """The rows as Markdown."""
        return self.folder / "table.md"

    @property
    def summary(self) -> Path:
        """Device, driver, versions, command, date."""
        return self.folder / "summary.json"

    @property
    def recordings(self) -> Path:
        """What checks kept, packed."""
        return self.folder / "recordings.tar.xz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The time for all checks."""

    ends: float
    """On time.monotonic()."""

    def left_s(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()


def run_all(
    checks: Iterable[tuple[str, Check]],
    results: Results,
    budget: Budget,
    *,
    device: str,
    kept: Path,
    jobs: int = 1,
    run: Path = RUN,
) -> None:
    """Begins (stage, check) in this order, and ends what still runs as the time is over.

    One for which too little time is left is passed over, and said.

    Args:
        jobs: so many at once, of those that need not be alone.
        run: the program that runs one check; see ``run.py``.
    """

    def begin(stage: str, check: Check) -> None:
        left = max(budget.left_s(), 0)
        if device == "cpu" and not check.on_cpu:
            _say(results, stage, check.name, None, "not tried: it needs a GPU")
        elif left < BEGUN_SHARE * check.limit_s:
            _say(results, stage, check.name, None, f"not tried: {left:.0f} s left, {check.limit_s:g} wanted")
        else:
            _run_one(stage, check, results, left, device=device, kept=kept, run=run)

    running: list[Future[None]] = []
    with ThreadPoolExecutor(jobs) as pool:
        for stage, check in checks:
            if check.alone:
                wait(running)
            running.append(pool.submit(begin, stage, check))
            if check.alone:
                wait(running)
    for each in running:
        each.result()


def _run_one(
    stage: str, check: Check, results: Results, left_s: float, *, device: str, kept: Path, run: Path
) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankmem-gpu-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, str(run), "--one", f"{stage}/{check.name}", "--device", device]
        command += ["--out", str(results.folder), "--scratch", folder, "--kept", str(kept)]
        log = Path(folder) / "log"
        with log.open("wb") as written:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            why = _wait(process, check.limit_s, left_s)
        text = log.read_text(errors="replace")
        with results.log.open("a") as file:
            file.write(f"==== {stage}/{check.name}: {why or 'ended'}\n{text}\n")
    seconds = time.monotonic() - began
    if why or not any(row.is_of(stage, check.name) for row in read(results.rows)):
        end = f"{why or 'it found nothing'}: {text[-LAST_CHARS:]}"
        _say(results, stage, check.name, None if why == OVER else False, end, seconds)
    print(f"{stage}/{check.name}: {why or 'ended'} after {seconds:.1f} s", flush=True)


def _wait(process: subprocess.Popen[bytes], limit_s: float, left_s: float) -> str:
    """Why the check did not end well; empty if it did. What it has started is ended with it."""
    try:
        code = process.wait(min(limit_s, left_s))
    except subprocess.TimeoutExpired:
        code = None
    _end_group(process)
    if code is None:
        return OVER if left_s < limit_s else f"stopped after {limit_s:g} s"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" if code else ""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends all processes of the check's group, and waits for its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _say(
    results: Results, stage: str, name: str, ok: bool | None, measured: str, seconds: float = 0.0
) -> None:
    append(results.rows, Row(stage=stage, check=name, ok=ok, measured=measured, seconds=seconds))


def run_here(stage: str, check: Check, place: Place, results: Results) -> None:
    """Runs a check in this process, which was started for it; each thing found is a row at once."""
    began = time.monotonic()
    for found in check.look(place):
        row = Row(
            stage=stage,
            check=f"{check.name}: {found.what}",
            ok=found.ok,
            measured=found.measured,
            expected=found.expected,
            seconds=round(time.monotonic() - began, 2),
        )
        append(results.rows, row)


def worst(rows: Sequence[Row]) -> int:
    """The exit code: 1 where something failed, else 0."""
    return int(any(row.ok is False for row in rows))
