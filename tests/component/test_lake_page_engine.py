"""``rankmem page`` and ``rankmem export`` with ``--engine``: the same answers, and its errors at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lake_sessions import RESTARTED
from ports import free_port
from rankmem_aggregator import connect
from rankmem_aggregator.lake.engines import open_engine
from rankmem_aggregator.lake.processes import Processes
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.lake.shared_engine import SharedEngine
from rankmem_aggregator.page.serving import PageServer
from rankmem_cli.main import app
from rankmem_protos.errors import Code, RankmemError

runner = CliRunner()


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has every question that an engine can answer go there, whatever it reads; counts the runs."""
    found: list[int] = []
    original = Processes.run

    def run(self: Processes, tasks: Any) -> Iterator[Any]:
        found.append(threading.get_ident())
        yield from original(self, tasks)

    monkeypatch.setattr(Processes, "run", run)
    monkeypatch.setattr(ScatteredQueries, "_is_worth", lambda self, text, parameters, session: True)
    return found


@pytest.mark.long
def test_readers_share_the_workers_of_one_engine(lake: str, tasks: list[int]) -> None:
    shared = SharedEngine(open_engine("processes:2"))
    with connect(lake) as one:
        expected = one.job_peak(RESTARTED)
    answers: list[Any] = []

    def ask() -> None:
        with ScatteredQueries(lake, shared.share()) as queries:
            answers.append(queries.job_peak(RESTARTED))

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    try:
        assert answers == [expected] * 3
        assert len(set(tasks)) == 3
        assert isinstance(shared.engine, Processes)
        assert 1 <= len(shared.engine.pids) <= 2  # closing a reader left them
    finally:
        shared.close()


def test_a_reader_that_is_given_up_does_not_end_the_question_of_another(lake: str) -> None:
    shared = SharedEngine(open_engine("processes:1"))
    first, second = shared.share(), shared.share()
    is_running, may_end = threading.Event(), threading.Event()

    def no_tasks() -> Iterator[Any]:
        is_running.set()
        may_end.wait()
        yield from ()

    holding = threading.Thread(target=lambda: list(first.run(no_tasks())))
    holding.start()
    is_running.wait()
    failed: list[RankmemError] = []

    def waits() -> None:
        try:
            list(second.run(iter(())))
        except RankmemError as exc:
            failed.append(exc)

    waiting = threading.Thread(target=waits)
    waiting.start()
    try:
        while waiting.is_alive():  # stop() before run() counts for nothing
            second.stop()
        assert holding.is_alive()
    finally:
        may_end.set()
        holding.join()
        waiting.join()
        shared.close()
    assert [error.message for error in failed] == ["the question was interrupted"]


def test_the_page_asks_its_engine(lake: str, tasks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(self: PageServer) -> None:
        with self._pool._open() as queries:
            asked.append(queries.job_peak(RESTARTED))
        self.page.close()
        self._socket.close()

    monkeypatch.setattr(PageServer, "run", run)
    done = runner.invoke(
        app,
        ["page", "--lake", lake, "--engine", "processes:2", "--session", RESTARTED],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    assert "processes:2 has 2 workers" in done.stderr
    with connect(lake) as one:
        assert asked == [one.job_peak(RESTARTED)]
    assert tasks


@pytest.mark.long
def test_an_export_is_the_same_with_an_engine(lake: str, tasks: list[int], tmp_path: Path) -> None:
    for name, engine in (("one", []), ("two", ["--engine", "processes:2"])):
        arguments = ["export", "parquet", str(tmp_path / name), "--lake", lake, "--session", RESTARTED]
        assert runner.invoke(app, [*arguments, *engine], catch_exceptions=False).exit_code == 0
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.parquet"))
    assert files
    for file in files:
        one, two = (pq.read_table(tmp_path / name / file).to_pylist() for name in ("one", "two"))
        assert sorted(map(repr, one)) == sorted(map(repr, two)), file  # equal positions have no order
    assert tasks


@pytest.mark.parametrize("verb", [["page"], ["export", "html", "out.html"]])
def test_what_is_wrong_with_an_engine_is_said_at_once(lake: str, verb: list[str]) -> None:
    port = free_port()
    for given, code, told in (
        (["--lake", lake, "--engine", "spark"], Code.INVALID, "'spark' is no engine"),
        (["--db", "a.duckdb", "--engine", "processes:2"], Code.INVALID, "answers from a lake alone"),
        (["--lake", lake, "--engine", f"ray://127.0.0.1:{port}"], Code.UNAVAILABLE, "no Ray cluster at"),
        (["--lake", lake, "--engine", f"sc://127.0.0.1:{port}"], Code.UNAVAILABLE, "no Spark Connect"),
    ):  # fmt: skip
        error = runner.invoke(app, [*verb, *given]).exception
        assert isinstance(error, RankmemError), given
        assert error.code in (code, Code.UNSUPPORTED if code is Code.UNAVAILABLE else code)
        assert told in error.message or "needs the package" in error.message
