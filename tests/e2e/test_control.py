"""``rankmem control``: a running job's ranks record less and more at the same steps, and no byte is lost."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ending import outputs
from main_job import RANKMEM, RUN, TIMEOUT_S, TORCHRUN, environment, rows
from rankmem_aggregator import connect
from rankmem_cli.main import app
from rankmem_protos.errors import RankmemError
from served import served
from waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
TRAIN = Path(__file__).parent / "training_scripts/controlled.py"
WINDOW_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of two ranks that has ended, and what was told to it while it ran."""

    folder: Path
    first: int
    """The window, in which all is recorded; around it memory alone is."""
    last: int
    said: str
    absent: Result
    """An order for a rank that is not there."""
    ended: Result
    """One for the session after its end."""

    def refusals(self) -> list[str]:
        return [str(result.exception) for result in (self.absent, self.ended)]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return rows(self.folder, "sql", sql, "--db", "job.duckdb")


def control(address: str, *arguments: str) -> Result:
    """The verb, in this process."""
    return CliRunner(env={"NO_COLOR": "1"}).invoke(app, ["control", *arguments, "--aggregator", address])


def steps_ended(address: str) -> int:
    """Steps that both ranks have ended, as far as is stored."""
    with connect(address) as queries:
        try:
            found = queries.sql(
                "SELECT min(last) FROM (SELECT max(step) AS last FROM step GROUP BY rank HAVING count(*) > 1)"
            )
        except RankmemError:
            return 0
        return int(found.column(0)[0].as_py() or 0)


def reached(address: str, step: int) -> Callable[[], bool]:
    """Whether a step is stored; asked twice a second, since each question costs the trainings' processor."""
    return lambda: threading.Event().wait(0.5) or steps_ended(address) >= step


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("control")
    command = (*RUN, "--", *TORCHRUN, "--nproc-per-node", "2", str(TRAIN))
    with served(folder) as address:
        variables = environment(folder, RANKMEM_AGGREGATOR=address)
        with (
            subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as run,
            contextlib.ExitStack() as ending,
        ):
            ending.callback((folder / "done").touch)  # whatever fails here
            until("steps", reached(address, 5))
            absent = control(address, "stop", "--ranks", "1-2")
            less = control(address, "detail", "summary")
            assert less.exit_code == 0, less.output
            first = steps_ended(address) + 60
            window = ("--steps", f"{first}-{first + WINDOW_STEPS - 1}")
            more = control(address, "detail", "full", *window)
            assert more.exit_code == 0, more.output
            until("the window is over", reached(address, first + WINDOW_STEPS + 5))
            ending.close()
            ((_, said),) = outputs([run], TIMEOUT_S)
            assert run.returncode == 0, said
        ended = control(address, "start", "--session", TRAIN.name, "--ranks", "0-1")
    return Job(
        folder=folder,
        first=first,
        last=first + WINDOW_STEPS - 1,
        said=less.output + more.output,
        absent=absent,
        ended=ended,
    )


def test_both_ranks_change_at_the_step_that_was_said_and_each_order_is_a_row(job: Job) -> None:
    orders = job.rows("SELECT * FROM control ORDER BY order_id, rank")
    assert [(row["rank"], row["what"], row["state"], row["is_late"]) for row in orders] == [
        (0, "summary", "applied", False), (1, "summary", "applied", False),
        (0, "full", "over", False), (1, "full", "over", False),
    ]  # fmt: skip
    assert {(row["applied_step"], row["over_step"]) for row in orders[2:]} == {(job.first, job.last + 1)}
    assert len({row["applied_step"] for row in orders[:2]}) == 1
    assert f"ranks 0, 1: from step {orders[0]['applied_step']} on memory alone is recorded" in job.said
    assert all("@" in row["asked_by"] and "127.0.0.1" in row["asked_by"] for row in orders)


def test_bytes_are_those_of_every_step_whatever_was_known_of_them(job: Job) -> None:
    """From the third step on each is the same to the byte, in full detail, in summary and at each change."""
    figures = job.rows(
        "SELECT rank, peak_bytes, last_bytes, allocated_bytes, num_allocations, count(*) AS steps "
        "FROM step_bucket WHERE step >= 3 AND step < (SELECT max(step) FROM step_bucket) GROUP BY ALL"
    )
    assert sorted(row["rank"] for row in figures) == [0, 1]
    assert min(row["steps"] for row in figures) > job.last
    ranks = job.rows("SELECT rank, complete, events_lost FROM rank_overview ORDER BY rank")
    assert [(row["complete"], row["events_lost"]) for row in ranks] == [(True, 0)] * 2


def test_names_are_known_within_the_window_and_before_the_first_order_alone(job: Job) -> None:
    known = job.rows(
        "SELECT DISTINCT step FROM allocation WHERE operator IS NOT NULL AND step IS NOT NULL ORDER BY step"
    )
    summary = job.rows("SELECT min(step_first) AS step FROM detail_span")[0]["step"]
    assert [row["step"] for row in known] == [*range(summary), *range(job.first, job.last + 1)]


def test_every_answer_says_what_is_not_known_and_that_bytes_are_exact(job: Job) -> None:
    spans = job.rows("SELECT step_first, step_last FROM detail_span WHERE rank = 0 ORDER BY step_first")
    assert [row["step_last"] for row in spans] == [job.first - 1, None]
    told = job.rows(
        "SELECT DISTINCT what, is_bytes, sentence FROM incompleteness WHERE why = 'control' "
        "ORDER BY sentence DESC"
    )
    assert [(row["what"], row["is_bytes"]) for row in told] == [("operators, stacks and modules", False)] * 2
    assert told[1]["sentence"].startswith("its highest finished step, ")
    assert f"{job.last + 1} on" in told[0]["sentence"]
    done = subprocess.run(
        (*RANKMEM, "peak", "--db", "job.duckdb"), cwd=job.folder, capture_output=True, text=True, check=True
    )
    assert told[0]["sentence"] in done.stderr


def test_a_rank_that_is_not_there_and_a_session_that_has_ended_are_refused(job: Job) -> None:
    absent, ended = job.refusals()
    assert absent.startswith("rank 2 of attempt 0: not running")
    assert "nothing was changed" in absent
    assert "no running rank" in ended
