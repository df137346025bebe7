"""A block is what that of an earlier step was, where the tap says that they are alike: real trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from repetitions import long_but_one_in
from shadowed import Comparison, report, shadowed
from steady_trainings import TRAININGS

QUICK = ("mlp", "evaluated", "by_line", "by_function", "by_module", "in_place", "summed_gradients",
         "freed_early", "raising", "loader_thread")  # fmt: skip
"""Of each kind that a comparison could take for another, one; the rest are long."""
STEPS, STEPS_LONG = 12, 40


def held(training: str, folder: Path, steps: int) -> Comparison:
    found = shadowed(training, folder, steps)
    said = report(training, found)
    print(said)
    assert not found.wrong, said
    assert not found.wrong_category, said
    return found


@pytest.mark.parametrize("training", long_but_one_in(QUICK, 2))
def test_what_a_twin_says_is_what_was_seen(training: str, tmp_path: Path) -> None:
    found = held(training, tmp_path, STEPS)
    assert found.num_alike > 0.5 * found.num_blocks


@pytest.mark.long
@pytest.mark.parametrize("training", sorted(set(TRAININGS) - {"without_gradient"}))
def test_what_a_twin_says_is_what_was_seen_in_every_training(training: str, tmp_path: Path) -> None:
    held(training, tmp_path, STEPS_LONG)


def test_an_operator_in_the_same_instruction_that_autograd_knows_nothing_of_is_not_told_from_another(
    tmp_path: Path,
) -> None:
    found = shadowed("without_gradient", tmp_path, 20)
    wrong = found.wrong + found.doubtful
    assert {name for name, _, _ in wrong} == {"operator"}
    assert {said for _, *both in wrong for said in both} == {"aten::tanh", "aten::sigmoid"}
