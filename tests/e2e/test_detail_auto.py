"""RANKMEM_DETAIL=auto: bytes of every step, names of some, and answers that say which the highest step is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from main_job import RANKMEM, ask, call, rows

pytestmark = pytest.mark.timeout(300)
SCRIPT = Path(__file__).parent / "training_scripts/rising.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("auto")
    done = call((*RANKMEM, "run", "--detail", "auto", "--", sys.executable, str(SCRIPT)), made)
    assert done.returncode == 0, done.stderr
    return made


def test_the_steps_after_a_higher_one_are_known_and_each_change_is_a_row(folder: Path) -> None:
    changes = rows(folder, "sql", "SELECT order_id, outcome, detail, step FROM control_change ORDER BY seq")
    assert [tuple(row.values()) for row in changes] == [
        (0, "auto", "summary", 8), (0, "auto", "full", 10), (0, "auto", "summary", 14)
    ]  # fmt: skip
    named = rows(
        folder,
        "sql",
        "SELECT DISTINCT step FROM allocation WHERE operator IS NOT NULL AND step IS NOT NULL ORDER BY 1",
    )
    assert [row["step"] for row in named] == [*range(8), *range(10, 14)]
    (rank,) = rows(folder, "sql", "SELECT detail, not_recorded, complete FROM rank_overview")
    assert tuple(rank.values()) == ("auto", "", True)
    (counted,) = rows(folder, "sql", "SELECT count(*) AS n, count(DISTINCT num_allocations) AS kinds "
                      "FROM step_bucket WHERE step BETWEEN 2 AND 13 AND step <> 9")  # fmt: skip
    assert tuple(counted.values()) == (12 - 1, 1), "every block of every step"


def test_every_answer_says_that_the_peak_came_once_and_which_step_in_full_was_highest(folder: Path) -> None:
    (peak,) = rows(folder, "sql", "FROM detail_peak")
    (highest,) = rows(
        folder, "sql", "SELECT max(peak_bytes) AS bytes FROM step_bucket WHERE step NOT IN (8, 9)"
    )
    assert (peak["peak_step"], peak["is_full"], peak["full_bytes"]) == (9, False, highest["bytes"])
    said = ask(folder, "peak").stderr
    assert "not recorded in steps 8 to 9, 14 on (detail auto)" in said
    assert (
        f"its highest finished step, 9 ({peak['peak_bytes']:,} bytes on cpu), was not recorded in full"
        in said
    )
    assert f"the highest that was is {peak['full_step']} ({peak['full_bytes']:,} bytes)" in said
