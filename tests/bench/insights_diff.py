"""What a change did: false alarms and changes found in recorded trainings, beside plain medians.

Five models on which the method was not made, batches and lengths that vary or do not; each side has its own
seed and number of steps. How large a change is, the same training with the same seed shows, step by step.
"""

from __future__ import annotations

from typing import Final

from harness import Figure, Options

from diff_runs import MODELS, NAIVE_SHARE, cases_of, judge, record

FIRST_SEED: Final = 41_000
QUICK_MODELS: Final = 2
FOUND_SHARE: Final = 0.02
"""Of the peak, from which on a change has to be found."""


def measure(options: Options) -> list[Figure]:
    """All figures of this insight."""
    cases = [cases_of(model, FIRST_SEED) for model in MODELS[: QUICK_MODELS if options.quick else None]]
    path = options.folder / "diff.duckdb"
    record(cases, path)
    judged = judge(cases, path)
    false = sum("worse" in each.again.verdicts.values() for each in judged)
    unequal = sum(bool({"worse", "better"} & set(each.again.verdicts.values())) for each in judged)
    large = [each for each in judged if each.true_share >= FOUND_SHARE]
    found = sum(each.changed.verdicts["peak"] == "worse" for each in large)
    off = max(abs(each.changed.share - each.true_share) for each in judged)
    naive_false = sum(abs(each.again.naive_share) > NAIVE_SHARE for each in judged)
    naive_found = sum(each.changed.naive_share > NAIVE_SHARE for each in large)
    of = f"of {len(judged)}"
    changes = f"{len(large)} changes, the least {min(each.true_share for each in large):.1%} of the peak"
    percent = 100 / len(large)
    return [
        Figure(what="diff, nothing changed: called worse", value=false, at_most=0, note=of),
        Figure(what="diff, nothing changed: called worse or better", value=unequal, note=of),
        Figure(what="diff, changes found", value=percent * found, unit="%", at_least=95, note=changes),
        Figure(what="diff, size of a change: largest error", value=100 * off, unit="% of the peak"),
        Figure(what="diff, naive medians, nothing changed: beyond 2 %", value=naive_false, note=of),
        Figure(what="diff, naive medians, changes found", value=percent * naive_found, unit="%"),
    ]
