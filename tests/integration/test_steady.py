"""Calls unobserved in steps that are known: a block is what a fully observed run of the same training says.

Two runs of one seed make the same blocks; nothing of rankmem decides which block is which.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmem_agent.spool.layout import Outcome
from rankmem_ship.parts import twins_of
from recorded_models import paired_rows
from repetitions import long_but
from shadowed import blocks_of, recorded_steps
from steadied import Steadied, report, steadied
from steady_trainings import TRAININGS
from tap_process import changes_of

QUICK = ("by_line", "by_module", "summed_gradients", "evaluated", "cells")
"""What a comparison could take for the same, and what a step that is left amid leaves open."""
CUT = ("by_line", "cells")
STEPS, STEPS_LONG = 60, 120
AUDITS_OFTEN = 10
PERIODS_STEPS, PERIODS_LEARNED = 600, 480
# The same instruction runs another operator, which only backward shows, or nothing; what a loader's thread
# makes, and when, is a race in either run.
EXCEPTIONS = ("by_function", "without_gradient", "loader_thread")


def held(training: str, folder: Path, steps: int) -> Steadied:
    found = steadied(training, folder, steps)
    said = report(training, found)
    print(said)
    # When a collective's thread lets go of a block is a race as well, and so is what that is taken for.
    races = training.startswith(("ddp", "fsdp"))
    assert not [what for what in found.wrong if not (races and what[1] == "category")], said
    assert "none" not in found.known_by, said
    assert not any(column in ("operator", "stack_id") for _, column in found.silent), said
    return found


@pytest.mark.parametrize("training", QUICK)
def test_a_block_is_what_a_fully_observed_run_says(training: str, tmp_path: Path) -> None:
    found = held(training, tmp_path, STEPS)
    assert found.known_by["template"] > 0.1 * found.known_by.total()


@pytest.mark.long
@pytest.mark.parametrize("training", sorted(set(TRAININGS) - set(EXCEPTIONS)))
def test_a_block_is_what_a_fully_observed_run_says_in_every_training(training: str, tmp_path: Path) -> None:
    held(training, tmp_path, STEPS_LONG)


def test_what_comes_each_n_steps_is_learned_and_so_is_what_comes_each_m_steps_beside(tmp_path: Path) -> None:
    changes = changes_of(recorded_steps("two_periods", tmp_path, PERIODS_STEPS, audits_every=50))
    misses = [step for _, outcome, step, _ in changes if outcome == Outcome.MISSED]
    assert misses
    assert misses[-1] < PERIODS_LEARNED, misses


def test_an_operator_that_only_backward_shows_is_wrong_in_a_beginning_alone(tmp_path: Path) -> None:
    found = steadied("by_function", tmp_path, STEPS)
    assert {(by, column) for by, column, _, _ in found.wrong} <= {("template_prefix", "operator")}, (
        found.wrong
    )


def test_an_operator_that_nothing_shows_is_said_with_the_other_one_once_an_audit_has_seen_it(
    tmp_path: Path,
) -> None:
    found = steadied("without_gradient", tmp_path, STEPS_LONG, audits_every=5)
    assert {(by, column) for by, column, _, _ in found.wrong} <= {("template", "operator")}, found.wrong
    assert found.either["template", "operator"] > 0


@pytest.mark.parametrize("training", long_but(CUT, "by_line"))
def test_what_a_block_is_does_not_depend_on_where_batches_end(training: str, tmp_path: Path) -> None:
    recording = recorded_steps(training, tmp_path, STEPS, audits_every=AUDITS_OFTEN)
    whole, cut = paired_rows(recording, len(recording.records)), paired_rows(recording, 53)
    assert blocks_of(cut) == blocks_of(whole)
    assert any(row["attribution"] == "template" for row in blocks_of(whole).values())


def test_a_block_and_the_one_that_it_is_like_have_the_same_twin(tmp_path: Path) -> None:
    recording = recorded_steps("cells", tmp_path, STEPS, audits_every=AUDITS_OFTEN)
    seq = recording.seq
    twins = {int(seq[block]): int(seq[twin]) for block, twin, _ in twins_of(recording.records).tolist()}
    like = {
        block: row["like_id"]
        for block, row in blocks_of(paired_rows(recording)).items()
        if row["attribution"] == "template"
    }
    assert like
    assert {block: twins[block] for block in like} == {block: twins[twin] for block, twin in like.items()}
