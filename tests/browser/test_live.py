"""A real training, watched in a real browser while the aggregator and the page's server are killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from main_job import RANKMEM, RUN, TORCHRUN, environment
from page_browser import OpenPage
from rankmem_aggregator import connect
from waiting import until

SECOND = 1_000_000_000
TRAIN = """
import sys, time
from pathlib import Path
import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.Adam(model.parameters())
kept = []
while not Path(sys.argv[1]).exists():
    loss = model(torch.randn(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.zeros(4096))
    time.sleep(0.1)
"""
"""Trains until a file is there."""


@dataclass
class Served:
    """``rankmem serve --page`` as a browser's test sees it."""

    process: subprocess.Popen[str]
    aggregator: str
    address: str
    first_link: str

    @property
    def server(self) -> Served:
        """As :class:`PageServer`, for ``OpenPage``."""
        return self

    def link(self) -> str:
        """The link that was printed, once."""
        return self.first_link

    def child(self, module: str) -> int:
        """The process of this module."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return int(pid)
        return 0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    command = (*RANKMEM, "serve", "--db", "live.duckdb", "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0")
    with (
        (tmp_path / "serve.log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=log, text=True) as process,
    ):
        said = tmp_path / "serve.log"
        try:
            until("the page is served", lambda: "the page is at" in said.read_text())
            text = said.read_text()
            aggregator = re.search(r"listening on (\S+),", text)
            link = re.search(r"http://\S+", text)
            assert aggregator
            assert link
            yield Served(process, aggregator[1], link[0].partition("/#")[0], link[0])
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def training(served: Served, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks that train, recorded by the aggregator."""
    (folder / "train.py").write_text(TRAIN)
    train = (*TORCHRUN, "--nproc_per_node", "2", str(folder / "train.py"), str(folder / "stop"))
    command = (*RUN, "--aggregator", served.aggregator, "--name", "live", "--", *train)
    with (folder / "train.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def status(page: OpenPage) -> dict[str, Any]:
    found: dict[str, Any] = page.tab.evaluate("() => window.rankmem.live()")
    return found


def events_shown(page: OpenPage) -> int:
    found: int | None = page.tab.evaluate("() => window.rankmem.job()?.facts.last_ns ?? null")
    return found or 0


def events_of(page: OpenPage) -> int:
    found: int = page.tab.evaluate("() => window.rankmem.job().facts.session.events")
    return found


def shown_until(page: OpenPage) -> int:
    return int(page.state("to") or 0)


def wait(page: OpenPage, what: str, condition: Any, limit_s: float = 60.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_s, f"waited in vain: {what}; {status(page)}; {page.faults}"
        page.tab.wait_for_timeout(100)


@pytest.mark.timeout(600)
def test_a_training_is_followed_to_its_last_event_though_both_servers_are_killed(
    browser: Browser, served: Served, tmp_path: Path
) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = OpenPage(context.new_page(), served)  # type: ignore[arg-type]
    page.expected = ("Failed to load resource", "ERR_", "net::")
    with training(served, tmp_path) as process:
        with connect(served.aggregator) as queries:
            until(
                "a rank has reported",
                lambda: (
                    queries.sessions().num_rows > 0 and (queries.sessions()["events"][0].as_py() or 0) > 0
                ),
            )
        page.open()
        wait(page, "it is live", lambda: status(page)["kind"] == "live")
        first_ns = events_shown(page)
        wait(page, "the picture grows", lambda: events_shown(page) > first_ns + 500_000_000)

        os.kill(served.child("rankmem_aggregator.page.child"), signal.SIGKILL)
        before_ns = events_shown(page)
        wait(page, "it grows after the page's server died", lambda: events_shown(page) > before_ns)

        # A zoomed range at the end moves with it; an earlier one stays.
        page.tab.evaluate(
            "() => { const { last } = rankmem.job(); rankmem.state.change({ from: last - 1e9, to: last }); }"
        )
        begin_ns = shown_until(page)
        wait(page, "the range moves", lambda: shown_until(page) > begin_ns)
        assert shown_until(page) - int(page.state("from") or 0) == SECOND
        page.change(**{"from": SECOND, "to": 2 * SECOND})
        assert not status(page)["following"]
        wait(page, "no answer is waited for", lambda: not status(page)["refreshing"])
        paused_ns = events_shown(page)
        page.tab.wait_for_timeout(2500)
        assert (shown_until(page), events_shown(page)) == (2 * SECOND, paused_ns)
        page.tab.keyboard.press("f")
        wait(page, "it goes on", lambda: shown_until(page) > paused_ns)
        page.change(**{"from": None, "to": None})
        assert status(page)["following"]

        os.kill(served.child("rankmem_aggregator.supervision.worker"), signal.SIGKILL)
        before_ns = events_shown(page)
        wait(page, "it grows after the aggregator died", lambda: events_shown(page) > before_ns)
        (tmp_path / "stop").touch()
        assert process.wait(120) == 0, (tmp_path / "train.log").read_text()[-2000:]
    wait(page, "it is recorded", lambda: status(page)["kind"] == "recorded")
    with connect(served.aggregator) as queries:
        row = queries.sql(
            """SELECT e.rank, max(e.seq) AS seq, arg_max(e.requested_bytes, e.seq) AS requested_bytes,
                max(e.time_ns + coalesce(s.offset_ns, 0)) - (SELECT started_ns FROM session_overview)
                    AS time_ns
            FROM memory_event AS e LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
            WHERE e.rank = (SELECT highest_rank FROM session_overview)
            GROUP BY e.rank"""
        ).to_pylist()[0]
        events = queries.sessions()["events"][0].as_py()
    wait(page, "the whole is on the screen", lambda: events_of(page) == events)
    last_ns = row["time_ns"]
    page.change(rank=row["rank"], by="overall", **{"from": last_ns - 20_000_000, "to": last_ns + 1})
    shown = page.drawn("curve")
    requested = next(line for line in shown["lines"] if line["name"] == "requested")
    is_event = [at <= last_ns for at in requested["times"]]
    last = len(is_event) - is_event[::-1].index(True) - 1
    actions = zip(shown["events"]["seqs"], shown["events"]["actions"], strict=True)
    assert [seq for seq, action in actions if action][-1] == row["seq"]
    assert requested["times"][last] == last_ns
    assert requested["values"][last] == row["requested_bytes"]
    assert page.tab.inner_text(".live") == "recorded"
    page.check()
    context.close()
