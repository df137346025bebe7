"""The parent's side of an aggregator's process, with one that says and does what a test wants."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.sandbox import running_statements
from rankmem_aggregator.sandbox.running_statements import fingerprint
from rankmem_aggregator.supervision.crashed_statements import CrashedStatements
from rankmem_aggregator.supervision.supervisor import Supervisor
from rankmem_aggregator.supervision.worker_process import WorkerProcess
from waiting import until

STAND_IN = """#!{python}
import json, os, sys
options = json.loads(sys.stdin.readline())
def tell(**event):
    os.write(options["events_fd"], json.dumps(event).encode() + b"\\n")
{does}
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A file that is run in the worker's place; see :func:`replaced`."""
    path = tmp_path / "stand-in"
    path.touch(mode=0o700)
    return path


def replaced(stand_in: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """From now on this is run where a worker is started."""
    stand_in.write_text(STAND_IN.format(python=sys.executable, does=does))
    monkeypatch.setattr(sys, "executable", str(stand_in))


def started(stand_in: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> WorkerProcess:
    replaced(stand_in, monkeypatch, does)
    return WorkerProcess(
        AggregatorConfig(database_path=stand_in.with_name("x.duckdb")),
        CrashedStatements(suspects={"ab"}),
        running_fd=running_statements.shared_memory(1),
        is_embedded=False,
        niceness=0,
    )


def test_a_suspect_may_be_cleared_before_the_start_is_told(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers as soon as its port is bound; whoever asked at the death before asks again at once."""
    process = started(
        stand_in,
        monkeypatch,
        """
tell(cleared="ab")
tell(ready="127.0.0.1:7077", metrics="")
tell(cleared="cd")
""",
    )
    try:
        assert process.await_ready() == ("127.0.0.1:7077", "")
        assert process.wait() == 0
        assert list(process.cleared()) == ["ab", "cd"]
    finally:
        process.close()


DIES_AS_IT_STARTS = """
from pathlib import Path
starts = Path(__file__).with_name("starts")
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if starts.read_text() == "xx":  # it answers already, and has not told so
    os.pwrite(options["running_fd"], bytes.fromhex("{name}"), 0)
    os.kill(os.getpid(), 9)
tell(ready="127.0.0.1:7077", metrics="")
sys.stdin.readline()
"""


def test_a_statement_that_ends_one_that_is_just_starting_is_blamed(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left where it stands, it would be blamed for whatever ends the next one."""
    name = fingerprint("SELECT 1", {})
    replaced(stand_in, monkeypatch, DIES_AS_IT_STARTS.replace("{name}", name))
    with Supervisor(AggregatorConfig(database_path=stand_in.with_name("x.duckdb"))) as kept:
        os.kill(kept.pid, signal.SIGKILL)
        until("it is up again", lambda: kept.num_restarts == 1)
        assert list(kept._crashed.refused) == [name]
        assert running_statements.take(kept._running_fd) == []
