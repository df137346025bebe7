"""Stage ``meaning``: categories against torch.profiler's, and how much of the peak has a name.

Five of the models whose categories are compared on a CPU train on the device as they are, by torch's default
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from gpu.checks import Check, Found, Place, figure, within
from gpu.recorded import record

AGREEMENT_MIN: Final = 0.95
"""Precision and recall of each category, of bytes over time."""
SHARE_MIN: Final = 0.001
"""A category with less of all bytes over time is shown and not judged."""
UNKNOWN_MAX: Final = 0.01
NAMED_MAX: Final = 0.05
"""Of the peak, at most so much without an operator, line or module; optimizer state is of no module."""
MODELS: Final = ("gpt", "cnn", "mlp", "lstm", "unet")


def _categories(model: str) -> Callable[[Place], Iterator[Found]]:
    def look(place: Place) -> Iterator[Found]:
        from category_oracle import compare, summary, train

        agreement = compare(model, *train(model, place.folder, device=place.device), device=place.device)
        yield from judge_agreement(agreement)
        yield figure("largest disagreements", summary(agreement, top=6))

    return look


def judge_agreement(agreement: Any) -> Iterator[Found]:
    """Precision and recall of each category that has a share to speak of; and what ours does not know."""
    from rankmem_agent.spool.layout import Category

    judged = agreement.judged()
    total = sum(piece.weight for piece in agreement.pieces) or 1
    sums = agreement.confusion(judged)
    for category in Category:
        share = sum(weight for (theirs, _), weight in sums.items() if theirs is category) / total
        if category is Category.UNKNOWN or not share:
            continue
        precision, recall = agreement.precision_recall(category, judged)
        ok = None if share < SHARE_MIN else min(precision, recall) >= AGREEMENT_MIN
        measured = f"precision {precision:.4f}, recall {recall:.4f}, {share:.2%} of bytes over time"
        yield Found(what=category.name.lower(), ok=ok, measured=measured, expected=f">= {AGREEMENT_MIN} each")
    unknown = sum(piece.weight for piece in agreement.pieces if piece.ours is Category.UNKNOWN)
    yield figure("unknown, share of bytes over time", f"{unknown / total:.4%}")


def _named(workload: str, *arguments: str) -> Callable[[Place], Iterator[Found]]:
    def look(place: Place) -> Iterator[Found]:
        recording = record(place, workload, workload, *arguments)
        with recording.queries() as queries:
            for by in ("category", "operator", "line", "module", "phase"):
                rows = queries.peak_by(by=by).to_pylist()
                device = max(rows, key=lambda row: row["rank_peak_bytes"])["device"]
                shares = shares_of([row for row in rows if row["device"] == device])
                yield figure(f"by {by}", dict(list(shares.items())[:8]))
                unnamed = sum(share for name, share in shares.items() if name in UNNAMED)
                if by == "category":
                    yield within("unknown category at the peak", unnamed, UNKNOWN_MAX)
                elif by in ("operator", "line"):
                    yield within(f"no {by} at the peak", unnamed, NAMED_MAX)
                else:
                    yield figure(f"no {by} at the peak", f"{unnamed:.4f}")

    return look


UNNAMED: Final = ("unknown", "none", "")


def shares_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Groups of one device by their share of its rank's peak, the largest first."""
    found = {
        str(row["group_name"] or ""): (row["bytes_at_rank_peak"] or 0) / (row["rank_peak_bytes"] or 1)
        for row in rows
    }
    return {name: round(share, 4) for name, share in sorted(found.items(), key=lambda pair: -pair[1])}


CHECKS: Final = (
    Check(name="names_gpt", look=_named("gpt", "--batch", "4"), limit_s=80),
    *(Check(name=f"categories_{model}", look=_categories(model), limit_s=100) for model in MODELS),
    Check(name="names_resnet", look=_named("resnet", "--batch", "16"), limit_s=80),
    Check(name="names_bf16", look=_named("gpt", "--batch", "4", "--bf16"), limit_s=80),
)
