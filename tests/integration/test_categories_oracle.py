"""The categories against torch.profiler's on real trainings; docs/categories.md explains what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from category_oracle import Agreement, compare, our_lives, summary, train
from rankmem_agent.spool.layout import Category
from repetitions import long_but

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


# The oracle goes by addresses, and now and then follows one that was reused (gan: 1 run of 5 in which it does
# not know the generator's activations). A fault of ours is there in every run.
@pytest.mark.flaky(reruns=3, only_rerun="AssertionError")
@pytest.mark.parametrize(
    "model",
    long_but(["mlp", "cnn", "gpt", "gpt_checkpoint", "autocast", "gan"], "cnn", "gpt_checkpoint", "autocast"),
)
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


LESS: dict[tuple[str, Category], str] = {
    (
        "finetune",
        Category.INPUT,
    ): "a data set that stays is unknown, and so is a batch made after an evaluation",
    ("finetune", Category.ACTIVATION): "what the script computes from frozen features is unknown",
    ("stop_gradient", Category.ACTIVATION): "what was computed from detached activations is unknown",
    ("masks", Category.INPUT): "masks made once a layer has run are unknown",
    ("ddp_view", Category.GRADIENT): "on its way to the bucket a gradient is backward's own",
}
"""Where recall may be below the threshold, see docs/categories.md; precision holds: nothing wrong is said."""


@pytest.mark.parametrize(
    "model",
    long_but(
        [
            "gpt_checkpoint_reentrant", "finetune", "scaler", "moved", "lora", "penalty", "skipped_steps",
            "custom_function", "lstm", "experts", "masks", "stop_gradient", "ddp_view_accumulate", "ddp_view",
            "closure", "q_learning", "unet",
        ],
        "scaler", "lora", "custom_function", "experts",
    ),
)  # fmt: skip
def test_what_we_say_of_other_trainings_is_right_and_mostly_said(model: str, tmp_path: Path) -> None:
    agreement = _agreement(model, tmp_path)
    judged, sums = agreement.judged(), agreement.confusion(agreement.judged())
    total = sum(piece.weight for piece in agreement.pieces)
    for category in JUDGED:
        precision, recall = agreement.precision_recall(category, judged)
        if max(_theirs(sums, category), _ours(sums, category)) < SHARE_MIN * total:
            continue
        about = f"{category.name} {precision} {recall}\n{summary(agreement)}"
        if (model, category) != ("ddp_view", Category.AUTOGRAD_DETAIL):
            assert precision >= THRESHOLD, about
        assert recall >= THRESHOLD or (model, category) in LESS, about


def _theirs(sums: dict[tuple[Category, Category], int], category: Category) -> int:
    return sum(weight for (theirs, _), weight in sums.items() if theirs is category)


def _ours(sums: dict[tuple[Category, Category], int], category: Category) -> int:
    return sum(weight for (_, ours), weight in sums.items() if ours is category)
