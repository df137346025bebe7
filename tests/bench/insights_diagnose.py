"""What diagnose finds in trainings with one planted cause each, beside the largest category at the peak.

A cause counts where it leaks or the same training without it has a lower peak, which is what
``peak_after_least`` and ``peak_after`` are held against. The trainings without a cause must have no finding.
"""

from __future__ import annotations

from typing import Final

from harness import Figure, Options, say

from diagnose_runs import ALL, FEW, Diagnosed, Planted, diagnosed, judged

NAMED_LEAST: Final = 0.9
ERROR_MAX: Final = 1.0
"""Percent."""


def measure(options: Options) -> list[Figure]:
    """All figures of this insight."""
    planted = FEW if options.quick else ALL
    found: dict[Planted, Diagnosed] = {}
    for each in dict.fromkeys([*planted, *(one.without() for one in planted)]):
        found[each] = diagnosed(each, options.folder / f"{each.model}-{each.change}.duckdb")
        say(f"{each.model} {each.change}: {', '.join(found[each].kinds) or 'nothing'}")
    told = [judged(found[each], found[each.without()]) for each in planted if each.kind is not None]
    causes = [each for each in told if each.matters]
    clean = [each for each in found if each.kind is None]
    false = sum(bool(found[each].kinds) for each in clean)
    false += sum(each.named for each in told if not each.matters)
    errors = [100 * each.error for each in causes if each.error is not None]
    widths = [100 * each.width for each in causes if each.width is not None]
    many = f"{len(causes)} causes"
    return [
        Figure(
            what="diagnose: the planted cause is the first finding",
            value=sum(each.first for each in causes) / max(1, len(causes)),
            at_least=NAMED_LEAST,
            note=many,
        ),
        Figure(
            what="diagnose: the planted cause is among the findings",
            value=sum(each.named for each in causes) / max(1, len(causes)),
            at_least=NAMED_LEAST,
            note=many,
        ),
        Figure(
            what="naive: the largest category at the peak is the cause's",
            value=sum(each.naive for each in causes) / max(1, len(causes)),
            note=many,
        ),
        Figure(
            what="diagnose: findings where there is no cause, or one that does not raise the peak",
            value=false,
            at_most=0,
            note=f"{len(clean)} trainings without a cause, {len(told) - len(causes)} whose peak is the same",
        ),
        Figure(
            what="diagnose: the peak of the training without the cause, furthest outside of what was told",
            value=max(errors, default=0.0),
            unit="%",
            at_most=ERROR_MAX,
            note=f"{len(errors)} pairs",
        ),
        Figure(
            what="diagnose: from the least to the most that was told, widest",
            value=max(widths, default=0.0),
            unit="%",
            note=f"{sum(width > ERROR_MAX for width in widths)} of {len(widths)} wider than 1 %",
        ),
    ]
