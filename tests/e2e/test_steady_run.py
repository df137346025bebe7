"""RANKMEM_STEADY=auto: most steps are not observed, and every answer says what is not known for sure."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from main_job import RUN, ask, call, rows

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests/e2e/training_scripts/repeating.py"
EVIDENCE = "rank 0: some blocks are known by what was read at their allocation ("


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run's folder, and what was said at its end."""
    made = tmp_path_factory.mktemp("steady")
    done = call((*RUN, "--", sys.executable, str(SCRIPT)), made, RANKMEM_STEADY="auto")
    assert "trained 60" in done.stdout, done.stderr
    return made, done.stderr


def test_the_end_and_status_say_in_how_many_steps_calls_were_not_observed(run: tuple[Path, str]) -> None:
    folder, said = run
    (rank,) = rows(folder, "sql", "FROM rank_steady")
    assert rank["num_steps"] == 60
    # Observed are 4, two audits or three, and a miss is followed by ten steps in full, the next by twenty.
    assert 60 - 4 - 3 - 11 - 20 <= rank["steady_steps"] <= 60 - 4 - 2 - 11
    assert rank["audit_differences"] == 0
    misses = {1: "1 miss", 2: "2 misses"}[rank["steady_misses"]]
    line = (
        f"rank 0: calls were not observed in {rank['steady_steps']} of 60 steps, known from earlier ones "
        f"(RANKMEM_STEADY): {rank['template_blocks']:,} blocks are known by template, "
        f"{rank['evidence_blocks']:,} by evidence; {misses}, audits found no difference\n"
    )
    assert line in said
    assert line in ask(folder, "status").stderr
    assert "all complete" in said


@pytest.mark.long
def test_a_wish_without_effect_is_said(tmp_path: Path) -> None:
    command = (*RUN, "--", sys.executable, str(SCRIPT))
    done = call(command, tmp_path, RANKMEM_STEADY="auto", RANKMEM_MODULES="off")
    assert "trained 60" in done.stdout, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "RANKMEM_STEADY" in line)
    assert "RANKMEM_STEADY has no effect: it needs RANKMEM_DETAIL=full" in line


def test_every_answer_says_what_is_not_known_for_sure(run: tuple[Path, str]) -> None:
    folder, said = run
    assert EVIDENCE in said
    for verb in (("peak",), ("ops",), ("ops", "--by", "line"), ("modules",), ("live", "--rank", "0")):
        answered = ask(folder, *verb)
        assert EVIDENCE in answered.stderr, verb
        assert "not recorded" not in answered.stdout + answered.stderr, verb
    (row,) = json.loads(ask(folder, "ranks", "--format", "json").stdout)
    assert row["complete"] is True
    assert "RANKMEM_STEADY" in row["incomplete"]


def test_the_counts_are_those_of_the_blocks(run: tuple[Path, str]) -> None:
    folder, _ = run
    (rank,) = rows(folder, "sql", "FROM rank_steady")
    found = rows(folder, "sql", "SELECT attribution, count(*) AS n FROM allocation GROUP BY ALL")
    blocks = {row["attribution"]: row["n"] for row in found}
    assert blocks.pop("observed") > 0
    assert blocks == {"template": rank["template_blocks"], "evidence": rank["evidence_blocks"]}


def test_the_guide_s_statements_have_answers(run: tuple[Path, str]) -> None:
    folder, _ = run
    (block,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs/steady.md").read_text(), re.S)
    statements = [each for each in re.sub(r"--.*\n", "", block).split(";\n") if each.strip()]
    assert len(statements) == 5
    for statement in statements:
        assert rows(folder, "sql", statement), statement
