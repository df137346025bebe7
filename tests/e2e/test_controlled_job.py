"""``rankmem control`` stop, start, detail auto and detail full on one running job of two ranks.

One order follows the other, each for good; ``test_control.py`` has windows of steps and refusals.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from ending import outputs
from main_job import RUN, TIMEOUT_S, TORCHRUN, ask, environment, rows
from rankmem_aggregator import connect
from rankmem_cli.main import app
from rankmem_protos.errors import RankmemError
from served import served
from waiting import until

pytestmark = pytest.mark.timeout(300)
TRAIN = Path(__file__).parent / "training_scripts/controlled.py"
ORDERS: Final = (("stop",), ("start",), ("detail", "auto"), ("detail", "full"))
WHAT: Final = tuple(order[-1] for order in ORDERS)
STEPS_OF_BOTH: Final = (
    "SELECT if(count(*) = 2, min(last), 0) FROM (SELECT max(step) AS last FROM step GROUP BY rank)"
)
RANKS_THAT_CHOSE: Final = "SELECT count(DISTINCT rank) AS n FROM control_change WHERE outcome = 'auto'"
VERBS: Final = (
    ("peak",), ("peak", "--by", "module"), ("job-peak",), ("ranks",), ("hosts",), ("ops",), ("modules",),
    ("steps",), ("weights",), ("timeline",), ("live", "--rank", "0"), ("status",),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job, ended."""

    folder: Path
    said: list[str]
    """By the command, of each order."""
    first: list[int]
    """The step from which on each order holds, as the command said."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return rows(self.folder, "sql", sql, "--db", "job.duckdb")


def _number(address: str, sql: str) -> int:
    """The figure that is the answer; 0 before there is one. Each question costs the trainings' processor."""
    threading.Event().wait(0.3)
    with connect(address) as queries:
        try:
            return int(queries.sql(sql).column(0)[0].as_py() or 0)
        except RankmemError:
            return 0


def _order(address: str, order: tuple[str, ...]) -> str:
    arguments = ["control", *order, "--session", TRAIN.name, "--aggregator", address]
    done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@contextlib.contextmanager
def _training(folder: Path, address: str) -> Iterator[None]:
    command = (*RUN, "--", *TORCHRUN, "--nproc-per-node", "2", str(TRAIN))
    variables = environment(folder, RANKMEM_AGGREGATOR=address)
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as run:
        try:
            yield
        finally:
            (folder / "done").touch()
            ((_, said),) = outputs([run], TIMEOUT_S)
        assert run.returncode == 0, said


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("orders")
    said: list[str] = []
    with served(folder) as address, _training(folder, address):
        until("both ranks step", lambda: _number(address, STEPS_OF_BOTH) > 2)
        for order in ORDERS:
            said.append(_order(address, order))
            if order[-1] == "auto":
                until("both ranks have chosen", lambda: _number(address, RANKS_THAT_CHOSE) == 2)
    first = [int(re.findall(r"from step ([\d,]+) on", text)[0].replace(",", "")) for text in said]
    return Job(folder=folder, said=said, first=first)


def test_each_order_is_a_row_of_each_rank_and_both_change_at_the_step_that_was_said(job: Job) -> None:
    orders = job.rows("SELECT * FROM control ORDER BY order_id, rank")
    told = [(row["what"], row["rank"]) for row in orders]
    assert told == [(what, rank) for what in WHAT for rank in (0, 1)]
    assert [row["state"] for row in orders] == ["over"] * 6 + ["applied"] * 2
    assert not any(row["is_late"] for row in orders)
    assert [row["applied_step"] for row in orders] == [step for step in job.first for _ in (0, 1)]
    assert [row["over_step"] for row in orders[:6]] == [step for step in job.first[1:] for _ in (0, 1)]
    assert {row["step_last"] for row in orders} == {None}, "each was for good"
    assert all("@" in row["asked_by"] for row in orders)


def test_operators_are_known_where_the_orders_and_the_rank_itself_said_so(job: Job) -> None:
    stopped, started, chooses, in_full = job.first
    last = job.rows("SELECT max(step) AS step FROM step")[0]["step"]
    for rank in (0, 1):
        changes = job.rows(
            "SELECT outcome, detail, step FROM control_change "
            f"WHERE rank = {rank} AND outcome IN ('applied', 'auto') ORDER BY seq"
        )
        levels = [(row["step"], row["detail"]) for row in changes]
        assert (stopped, "summary") in levels
        assert {(started, "full"), (in_full, "full")} <= set(levels)
        assert next(row["outcome"] for row in changes if chooses < row["step"] < in_full) == "auto"
        expected, level, at = [], "full", 0
        for step, detail in [*levels, (last + 1, "")]:
            expected += range(at, step) if level == "full" else ()
            level, at = detail, step
        known = job.rows(
            "SELECT DISTINCT step FROM allocation WHERE operator IS NOT NULL AND step IS NOT NULL "
            f"AND step <= {last} AND rank = {rank} ORDER BY step"
        )
        assert [row["step"] for row in known] == expected
        assert not set(range(stopped, started)) & set(expected)


def test_no_byte_of_any_step_is_lost(job: Job) -> None:
    """From the third step on each is the same to the byte."""
    figures = job.rows(
        "SELECT rank, peak_bytes, last_bytes, num_allocations, count(*) AS steps FROM step_bucket "
        "WHERE step >= 3 AND step < (SELECT max(step) FROM step_bucket) GROUP BY ALL"
    )
    assert sorted(row["rank"] for row in figures) == [0, 1]
    ranks = job.rows("SELECT complete, events_lost FROM rank_overview")
    assert [tuple(row.values()) for row in ranks] == [(True, 0)] * 2


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_answer_says_in_which_steps_memory_alone_was_recorded(job: Job, verb: tuple[str, ...]) -> None:
    stopped, started, *_ = job.first
    gap = f"{stopped} to {started - 1}"
    said = ask(job.folder, *verb, "--db", "job.duckdb").stderr
    assert gap in said
    assert "operators, stacks and modules" in said
