"""The aggregator of `rankmem run`: a process of its own that yields to the training and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingest_client import IngestClient
from rankmem_agent.spool.election import NICENESS
from rankmem_aggregator.store.address import read_address
from rankmem_aggregator.supervision.supervisor import Supervisor
from rankmem_aggregator.supervision.worker import OOM_SCORE
from rankmem_cli.args.options import Target
from rankmem_cli.run.destination import open_destination
from sample_batches import RankSource


def _worker() -> int:
    """The one child of this process that is an aggregator's."""
    (pid,) = [
        int(task)
        for task in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        if b"rankmem_aggregator.supervision.worker" in Path(f"/proc/{task}/cmdline").read_bytes()
    ]
    return pid


def _niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_the_aggregator_of_a_job_yields_and_the_command_does_not(tmp_path: Path) -> None:
    own = _niceness(os.getpid())
    with open_destination(Target(db=tmp_path / "mem.duckdb", aggregator=None)):
        worker = _worker()
        threads = [int(name) for name in os.listdir(f"/proc/{worker}/task")]
        assert {_niceness(thread) for thread in threads} == {min(own + NICENESS, 19)}
        assert int(Path(f"/proc/{worker}/oom_score_adj").read_text()) >= OOM_SCORE
        limits = Path(f"/proc/{worker}/limits").read_text()
        assert "unlimited" not in next(line for line in limits.splitlines() if "data size" in line)[:40]
        asked = [sys.executable, "-c", "import os; print(os.nice(0))"]
        assert int(subprocess.check_output(asked)) == own
    assert not Path(f"/proc/{worker}").exists()


def test_signals_for_the_job_do_not_end_its_aggregator(tmp_path: Path) -> None:
    source = RankSource()
    path = tmp_path / "mem.duckdb"
    with open_destination(Target(db=path, aggregator=None)) as destination:
        worker = _worker()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(worker, number)
        with IngestClient(destination.address) as client:
            client.open(source)
            client.send(batch=source.batch(100))
            client.acks(1)
        assert _worker() == worker
        entry = read_address(path)
        assert entry is not None
        assert (entry.pid, entry.address) == (os.getpid(), destination.address)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mem.duckdb"]


def test_a_job_whose_aggregator_is_killed_reports_it_and_records_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Supervisor] = []
    start = Supervisor.start
    monkeypatch.setattr(Supervisor, "start", lambda self: (kept.append(self), start(self)))
    source = RankSource()
    with open_destination(Target(db=tmp_path / "mem.duckdb", aggregator=None)) as destination:
        os.kill(_worker(), signal.SIGKILL)
        while kept[0].num_restarts == 0:
            assert not kept[0].wait(0.05)
        with IngestClient(destination.address) as client:
            client.open(source)
            client.send(batch=source.batch(100))
            client.acks(1)
    text = capsys.readouterr().err
    assert "rankmem: the aggregator ended (SIGKILL)" in text
    assert f"rankmem: the aggregator is back at {destination.address}" in text
