"""Recorded trainings that leak, and some that do not: each is judged rightly, and the line is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose_runs import FEW as PLANTED
from diagnose_runs import Planted, diagnosed, judged
from leak_runs import Case, earlier_cases, held_out_cases, judge, record

FEW = [
    Case("mlp", "outputs_by_step", "batch", 20, 1, True),
    Case("gru", "summed_validation", "length", 20, 2, True),
    Case("mlp", "queue_of_random_length", "nothing", 24, 3, False),
    Case("waves", "metrics_reset", "length", 24, 4, False),
]
"""A leak of one line, a graph that is kept, and two that only look like leaks."""
SESSION_CASES = 10


def test_leaks_of_recorded_trainings_are_told_from_what_only_grows_at_times(tmp_path: Path) -> None:
    record(FEW, tmp_path / "few.duckdb")
    told = judge(FEW, tmp_path / "few.duckdb")
    assert [each.finding for each in told] == [case.leaks for case in FEW]
    # The model is of torch's own layers: the line of the project is that which calls it.
    assert told[0].line.endswith("aten::linear")
    assert "leak_trainings.py" in told[0].line
    assert "leak_models.py" in told[1].line


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("all_cases", "precision", "recall"), [(held_out_cases, 0.97, 0.95), (earlier_cases, 1.0, 1.0)]
)
def test_all_trainings_of_the_measurement(
    all_cases: Callable[[], list[Case]], precision: float, recall: float, tmp_path: Path
) -> None:
    cases = all_cases()
    right = wrong = missed = 0
    for first in range(0, len(cases), SESSION_CASES):
        own, path = cases[first : first + SESSION_CASES], tmp_path / f"{first}.duckdb"
        record(own, path)
        for each in judge(own, path):
            right += each.grows and each.case.leaks
            wrong += each.grows and not each.case.leaks
            missed += not each.grows and each.case.leaks
    assert right / (right + wrong) >= precision
    assert right / (right + missed) >= recall


@pytest.mark.long
@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: f"{each.model}-{each.change}")
def test_the_first_finding_is_the_planted_cause(planted: Planted, tmp_path: Path) -> None:
    found = diagnosed(planted, tmp_path / "with.duckdb")
    if planted.kind is None:
        assert found.kinds == ()
        return
    each = judged(found, diagnosed(planted.without(), tmp_path / "without.duckdb"))
    assert (each.matters, each.first) == (True, True)
    assert each.error == pytest.approx(0, abs=0.01)
