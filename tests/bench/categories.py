"""Agreement of the categories with torch.profiler's, model by model, as docs/categories.md shows it.

Run: ``python tests/bench/categories.py [MODEL ...]``. Prints Markdown: for each model and category the
precision and recall of bytes-over-time after the oracle's own faults, the share of bytes-over-time that each
fault takes out, and the largest disagreements that are left.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from category_models import MODELS
from category_models_more import MODELS as MORE
from category_models_ranks import MODELS as ON_RANKS
from category_oracle import Agreement, compare, summary, train
from rankmem_agent.spool.layout import Category

ORDER = (
    Category.INPUT, Category.TEMPORARY, Category.ACTIVATION, Category.GRADIENT, Category.AUTOGRAD_DETAIL,
    Category.PARAMETER, Category.OPTIMIZER_STATE,
)  # fmt: skip
"""Unknown has no share to agree on."""


SHARDED = "fsdp"
"""The oracle breaks off over DTensors, and knows nothing of flat parameters;
tests/integration/test_categories_ranks.py has another account."""


def main(models: list[str]) -> None:
    """Trains each model and prints its row."""
    print("| model | " + " | ".join(category.name.lower() for category in ORDER) + " | ours unknown |")
    print("|---|" + "---|" * (len(ORDER) + 1))
    notes = []
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            agreement = compare(model, *train(model, Path(folder)))
        print(row(agreement))
        notes.append(f"{model}: left out {faults(agreement)}; the rest disagrees in\n{rest(agreement)}")
    print("\n" + "\n\n".join(notes))


def row(agreement: Agreement) -> str:
    """A model's row: precision / recall (their share of bytes-over-time)."""
    judged = agreement.judged()
    sums = agreement.confusion(judged)
    total = sum(piece.weight for piece in agreement.pieces)
    cells = []
    for category in ORDER:
        precision, recall = agreement.precision_recall(category, judged)
        share = sum(weight for (theirs, _), weight in sums.items() if theirs is category) / total
        cells.append(f"{precision:.3f} / {recall:.3f} ({share:.2%})")
    unknown = sum(piece.weight for piece in agreement.pieces if piece.ours is Category.UNKNOWN) / total
    return f"| {agreement.model} | " + " | ".join(cells) + f" | {unknown:.2%} |"


def faults(agreement: Agreement) -> str:
    """What each of the oracle's faults takes out, in percent of all bytes-over-time."""
    total = sum(piece.weight for piece in agreement.pieces)
    sums: Counter[str] = Counter()
    for piece in agreement.pieces:
        if piece.fault and piece.theirs is not piece.ours:
            sums[f"{piece.fault} ({piece.theirs.name.lower()}, ours {piece.ours.name.lower()})"] += (
                piece.weight
            )
    return ", ".join(f"{name} {weight / total:.2%}" for name, weight in sums.most_common()) or "nothing"


def rest(agreement: Agreement) -> str:
    """The largest disagreements after the faults."""
    return summary(Agreement(agreement.model, agreement.judged()), top=4) or "nothing"


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in (MODELS | MORE | ON_RANKS) if not name.startswith(SHARDED)])
