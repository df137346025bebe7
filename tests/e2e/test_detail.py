"""RANKMEM_DETAIL: what each level records, and that answers say what was not recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from main_job import RUN, ask, call, rankmem, rows

pytestmark = pytest.mark.timeout(900)  # the first of them runs three jobs
SCRIPT = Path(__file__).parent / "training_scripts/detail.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training at each level, as sessions of one database."""
    made = tmp_path_factory.mktemp("detail")
    said = set()
    for detail in ("full", "operators", "events"):
        command = (*RUN, "--name", detail, "--detail", detail, "--", sys.executable, str(SCRIPT))
        done = call(command, made)
        assert done.returncode == 0, done.stderr
        assert "complete: rank" not in done.stderr
        said.add(done.stdout)
    assert len(said) == 1
    return made


def blocks(folder: Path, detail: str) -> list[dict[str, Any]]:
    """All blocks that were not there before."""
    return rows(
        folder, "sql",
        "SELECT step, operator, module, phase, category, stack_id, size_bytes FROM allocation "
        f"JOIN session USING (session_id) WHERE session.name = '{detail}' ORDER BY allocation_id",
    )  # fmt: skip


def of(found: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in found]


def test_operators_know_all_that_full_detail_does_but_lines_and_modules(folder: Path) -> None:
    full, operators = blocks(folder, "full"), blocks(folder, "operators")
    known = ("step", "operator", "phase", "size_bytes")
    assert of(operators, *known) == of(full, *known)
    for less, more in zip(operators, full, strict=True):  # data is known by the line that makes it
        assert less["category"] == more["category"] or (less["category"], more["category"]) == (
            "unknown",
            "input",
        )
    assert {row["phase"] for row in full} == {"forward", "backward", "optimizer", "other"}
    assert {(row["module"], row["stack_id"]) for row in operators} == {(None, None)}
    assert {row["module"] for row in full} >= {"0", "1", "2"}


def test_events_guess_no_operator_phase_or_meaning(folder: Path) -> None:
    full, events = blocks(folder, "full"), blocks(folder, "events")
    assert of(events, "size_bytes") == of(full, "size_bytes")
    assert {of([row], "operator", "module", "phase", "stack_id")[0] for row in events} == {(None,) * 4}
    meanings = {row["category"] for row in events}
    assert meanings == {"parameter", "gradient", "optimizer_state", "unknown"}  # what hooks tag
    for name in ("parameter", "gradient", "optimizer_state"):
        assert sum(row["category"] == name for row in events) == sum(row["category"] == name for row in full)
    (steps,) = rows(folder, "sql", "SELECT count(*) AS n FROM step JOIN session USING (session_id) "
                    "WHERE session.name = 'events'")  # fmt: skip
    assert steps["n"] == 3


@pytest.mark.parametrize(
    ("detail", "question", "note"),
    [
        ("operators", ("ops", "--by", "line"), "no stacks were recorded (RANKMEM_DETAIL=operators)"),
        ("operators", ("modules",), "no modules were recorded (RANKMEM_DETAIL=operators)"),
        ("events", ("ops",), "no operators were recorded (RANKMEM_DETAIL=events)"),
        ("events", ("live", "--rank", "0"), "no stacks were recorded (RANKMEM_DETAIL=events)"),
        ("events", ("timeline", "--by", "phase"), "no operators were recorded (RANKMEM_DETAIL=events)"),
    ],
)
def test_an_answer_says_what_was_not_recorded(
    folder: Path, detail: str, question: tuple[str, ...], note: str
) -> None:
    done = ask(folder, *question, "--session", detail)
    assert note in done.stderr.splitlines()
    if question[0] != "timeline":
        assert "(not recorded)" in done.stdout
    assert "outside of" not in done.stdout
    same = ask(folder, *question, "--session", "full")
    assert "recorded" not in same.stdout + same.stderr


def test_a_session_and_its_ranks_say_their_detail(folder: Path) -> None:
    sessions = {row["name"]: (row["detail"], row["not_recorded"]) for row in rows(folder, "sessions")}
    assert sessions == {
        "full": ("full", [""]),
        "operators": ("operators", ["stacks,modules"]),
        "events": ("events", ["operators,stacks,modules"]),
    }
    assert "(not recorded)" in ask(folder, "ops", "--session", "events").stdout
    rankmem(folder, "ranks", "--session", "events")
