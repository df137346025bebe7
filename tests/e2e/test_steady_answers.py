"""A recording with steady steps answers as one observed throughout, but for what docs/steady.md names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from main_job import RUN, call
from steady_answers import (
    Side,
    calls_differing,
    differing,
    open_side,
    page_differing,
    verbs_differing,
    views_differing,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).with_name("training_scripts") / "repeating_alike.py"
SESSION = "0STEADYSAME1"

VERBS = (
    "ranks", "hosts", "peak", "peak --by operator", "ops", "ops --by module", "ops --at total",
    "live --rank 0", "job-peak", "timeline --by phase", "modules", "weights", "steps", "leaks",
    "fit --batch 32", "whatif", "diff BASE HEAD",
)  # fmt: skip

CALLS_MISSING = "rows of operator_call and what is read as calls begin are missing in steady steps"
STEADINESS = "says that steps are steady"
HOST = "what the host and its processes held, and when that was sampled"
CUT = "cut by seconds, by pixels, by batches or by positions in the log, which has other records"
CATEGORY = "the first block of a miss has no category"
PHASE = "a block of a step with a miss has no phase outside of modules, backward and optimizers"
EXPECTED = {
    "operator_call": CALLS_MISSING, "step_input": CALLS_MISSING, "/inefficient": CALLS_MISSING,
    "diff BASE HEAD": CALLS_MISSING, "/insight/diff": CALLS_MISSING,
    "control_change": STEADINESS, "rank_steady": STEADINESS, "incompleteness": STEADINESS,
    "/missing": STEADINESS,
    "process_sample": HOST, "self_cost": HOST, "clock_offset": HOST, "app_curve": HOST, "NPU_MEM": HOST,
    "MEMORY_RECORD": HOST, "NPU_MODULE_MEM": HOST, "/mindstudio/components": HOST, "/beyond": HOST,
    "timeline overall": HOST, "component": HOST,
    "allocation_record": CUT, "allocation_end": CUT, "category_change": CUT, "memory_bucket": CUT,
    "group_bucket": CUT, "memory_level": CUT, "memory_cell": CUT, "memory_curve": CUT, "group_course": CUT,
    "job_peak_course": CUT, "curve": CUT, "/map": CUT, "/curve": CUT, "/groups": CUT, "/heat": CUT,
    "/mindstudio_curve": CUT, "/ranks_curve": CUT, "/segments": CUT, "/spans": CUT,
    "group_total": CATEGORY, "category": CATEGORY, "timeline --by phase": PHASE, "/events": PHASE,
}  # fmt: skip
"""Answers that differ, with the reason: by a name, or by a part of a call's text."""


def is_expected(name: str) -> bool:
    words = name.replace("SELECT * FROM ", "").replace("(", " ").replace("'", " ").split()
    return name in EXPECTED or any(word in EXPECTED for word in words)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, Side]:
    """The same training, with every step observed and with steady ones."""
    sides = []
    for name, variables in (("observed", {}), ("steady", {"RANKMEM_STEADY": "10"})):
        folder = tmp_path_factory.mktemp(name)
        command = (*RUN, "--db", "mem.duckdb", "--", sys.executable, str(SCRIPT))
        done = call(command, folder, RANKMEM_SESSION=SESSION, **variables)
        assert "trained 200" in done.stdout, done.stderr
        sides.append(open_side(folder / "mem.duckdb", SESSION))
    return sides[0], sides[1]


def test_each_block_is_the_same(both: tuple[Side, Side]) -> None:
    observed, steady = (
        side.rows(side.queries.sql("FROM allocation ORDER BY allocation_id")) for side in both
    )
    known = both[1].queries.sql("SELECT attribution, count(*) AS n FROM allocation GROUP BY ALL").to_pylist()
    assert {row["attribution"]: row["n"] for row in known}["template"] > len(steady) // 4
    assert differing(observed, steady) == set()


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_answers_the_same(both: tuple[Side, Side], verb: str) -> None:
    found = dict(verbs_differing(*both, [verb]))
    assert not [name for name in found if not is_expected(name)], found


def test_what_a_program_is_asked_is_the_same(both: tuple[Side, Side]) -> None:
    found = dict(calls_differing(*both, SESSION, one_in=6))
    assert not {name: columns for name, columns in found.items() if not is_expected(name)}


def test_tables_views_and_macros_are_the_same(both: tuple[Side, Side]) -> None:
    found = dict(views_differing(*both, SESSION, one_in=12))
    assert not {name: columns for name, columns in found.items() if not is_expected(name)}


def test_the_page_answers_the_same(both: tuple[Side, Side]) -> None:
    found = dict(page_differing(*both, SESSION, one_in=3))
    assert not {name: columns for name, columns in found.items() if not is_expected(name)}
