"""The categories against torch.profiler's on real trainings; docs/categories.md explains what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from category_oracle import Agreement, compare, our_lives, summary, train
from rankmem_agent.spool.layout import Category

JUDGED = tuple(category for category in Category if category is not Category.UNKNOWN)
SHARE_MIN = 1e-4
"""Of a model's bytes-over-time: below it a category is a few scalars, whose ratio means nothing."""
THRESHOLD = 0.95

pytest.importorskip("torch.profiler._memory_profiler", reason="deprecated; gone from this torch")


def _agreement(model: str, folder: Path) -> Agreement:
    recording, oracle = train(model, folder)
    agreement = compare(model, recording, oracle)
    at_once, _ = our_lives(recording)
    in_parts, _ = our_lives(recording, batches=23)
    assert {n: life.last() for n, life in at_once.items()} == {n: life.last() for n, life in in_parts.items()}
    return agreement


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "gpt_checkpoint", "autocast", "gan"])
def test_each_category_agrees_with_the_oracle(model: str, tmp_path: Path) -> None:
    agreement = _agreement(model, tmp_path)
    judged = agreement.judged()
    total = sum(piece.weight for piece in agreement.pieces)
    sums = agreement.confusion(judged)
    assert sum(piece.weight for piece in judged) > 0.8 * total, "the oracle's faults are the exception"
    seen = 0
    for category in JUDGED:
        if max(sums.get((category, category), 0), _theirs(sums, category)) < SHARE_MIN * total:
            continue
        precision, recall = agreement.precision_recall(category, judged)
        assert min(precision, recall) >= THRESHOLD, (
            f"{category.name} {precision} {recall}\n{summary(agreement)}"
        )
        seen += 1
    assert seen >= 6, "input, activation, gradient, autograd_detail, parameter and state are in each of them"


def test_temporaries_of_a_reentrant_checkpoint_agree(tmp_path: Path) -> None:
    agreement = _agreement("gpt_checkpoint_reentrant", tmp_path)
    precision, recall = agreement.precision_recall(Category.TEMPORARY, agreement.judged())
    assert _theirs(agreement.confusion(), Category.TEMPORARY) > 0.05 * sum(p.weight for p in agreement.pieces)
    assert min(precision, recall) >= THRESHOLD


def test_with_a_frozen_backbone_what_cannot_be_told_is_unknown_and_nothing_is_wrong(tmp_path: Path) -> None:
    agreement = _agreement("finetune", tmp_path)
    judged = agreement.judged()
    for category in JUDGED:
        precision, recall = agreement.precision_recall(category, judged)
        assert precision >= THRESHOLD or precision != precision, summary(agreement)
        assert category is Category.ACTIVATION or recall >= THRESHOLD or recall != recall, summary(agreement)
    sums = agreement.confusion(judged)
    wrong = sum(
        w for (theirs, ours), w in sums.items() if theirs is Category.ACTIVATION and ours is not theirs
    )
    assert wrong - sums[Category.ACTIVATION, Category.UNKNOWN] <= 0.001 * _theirs(sums, Category.ACTIVATION)


def _theirs(sums: dict[tuple[Category, Category], int], category: Category) -> int:
    return sum(weight for (theirs, _), weight in sums.items() if theirs is category)
