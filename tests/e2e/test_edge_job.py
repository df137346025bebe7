"""A job whose events stay on its host: summaries at once, the rest by `rankmem fetch`."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from main_job import RANKMEM, RUN, TIMEOUT_S, TORCHRUN, TRAIN, ask, call, environment, rows

pytest.importorskip("deltalake")
SERVE = (*RANKMEM, "serve", "--lake", "lake", "--listen", "127.0.0.1:0")


def test_events_stay_on_the_host_until_they_are_fetched(tmp_path: Path) -> None:
    with subprocess.Popen(
        (*SERVE, "--lake-interval-s", "2", "--lake-peak-bytes", "0"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    ) as served:
        assert served.stderr is not None
        first = next(line for line in served.stderr if "listening on 127.0.0.1:" in line)
        address = first.partition("listening on ")[2].split(",")[0]
        at = ("--aggregator", address)
        try:
            train = (*TORCHRUN, "--nproc-per-node", "2", str(TRAIN), "--steps", "3")
            edge = {"RANKMEM_EDGE": "on", "RANKMEM_EDGE_STAY_S": "600"}
            done = call((*RUN, *at, "--", *train), tmp_path, **edge)
            assert done.returncode == 0, done.stderr
            said = done.stderr[done.stderr.index("rankmem: session") :]
            assert "held at the peak of rank 1: not known: events of rank 1 of session" in said
            assert f"--aggregator {address} brings them" in said
            assert f"more: rankmem ops --aggregator {address} --session " in said
            assert "Error" not in said
            ranks = rows(tmp_path, "ranks", "--lake", "lake")
            assert [(row["rank"], row["complete"]) for row in ranks] == [(0, True), (1, True)]
            assert len(rows(tmp_path, "peak", "--lake", "lake")) == 2
            refused = call((*RANKMEM, "ops", "--lake", "lake", "--rank", "1"), tmp_path)
            assert refused.returncode == 1
            assert "events of rank 1 of session" in refused.stderr
            assert "rankmem fetch" in refused.stderr
            bounds = ask(tmp_path, "job-peak", "--lake", "lake")
            assert "between" in bounds.stdout

            fetched = ask(tmp_path, "fetch", "--ranks", "1", *at)
            assert "stretches came" in fetched.stderr
            assert rows(tmp_path, "ops", "--lake", "lake", "--rank", "1")
            count = "SELECT count(*) AS n FROM memory_event WHERE rank = 1"
            assert rows(tmp_path, "sql", count, "--lake", "lake") == [{"n": ranks[1]["events"]}]
            again = call((*RANKMEM, "ops", "--lake", "lake", "--rank", "0"), tmp_path)
            assert "events of rank 0 of session" in again.stderr
            ask(tmp_path, "fetch", *at)
            assert rows(tmp_path, "job-peak", "--lake", "lake")
        finally:
            served.send_signal(signal.SIGTERM)
            served.wait(TIMEOUT_S)
            shutil.rmtree(tmp_path / "spool", ignore_errors=True)
