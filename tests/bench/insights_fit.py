"""Will it fit: trainings of models that the method was not made with, each size predicted from others.

The naive ways on the same steps: a line through two peaks, and a peak in proportion to its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from harness import Figure, Options, say

from fit_runs import BATCHES, LENGTHS, Predicted, predictions, read, record
from fit_trainings import MODELS, WITH_LENGTHS
from rankmem_aggregator import connect

QUICK_MODELS: Final = ("llama", "dense")
QUICK_BATCHES: Final = (2, 4, 16)
P90_MAX: Final = 0.5
WORST_MAX: Final = 2.0
ONE_UNDER_MAX: Final = 1.0
RESERVED_MAX: Final = 1.0


def measure(options: Options) -> list[Figure]:
    """All figures of this insight."""
    models = QUICK_MODELS if options.quick else tuple(MODELS)
    batches = QUICK_BATCHES if options.quick else BATCHES
    found: list[Predicted] = []
    misses = []
    for model in models:
        for what, sizes in (("batch", batches), ("length", LENGTHS)):
            if what == "length" and (options.quick or model not in WITH_LENGTHS):
                continue
            path = options.folder / f"{model}-{what}.duckdb"
            record(model, what, sizes, path)
            recorded = read(path, sizes)
            found += predictions(model, what, recorded)
            say(f"{model} {what}: {len(recorded)} sizes")
            if what == "batch":
                misses += _largest_misses(str(path), {int(r.size): r.window.peak()[0] for r in recorded})
    return [
        *_errors("two sizes", [each for each in found if len(each.known) == 2]),
        *_errors("one size", [each for each in found if len(each.known) == 1]),
        Figure(what="largest batch that fits, furthest off", value=max(misses), at_most=1),
        _mixed(options),
    ]


def _errors(what: str, found: Sequence[Predicted]) -> list[Figure]:
    told = [each for each in found if each.ours is not None]
    ours = 100 * np.array([each.ours for each in told])
    naive = 100 * np.array([each.naive for each in told])
    note = f"{len(told)} predictions, {len(found) - len(told)} refused"
    from_two = what == "two sizes"
    reserved = 100 * np.array([each.reserved for each in told])
    return [
        Figure(
            what=f"fit, {what}: reserved bytes, furthest off",
            value=float(np.abs(reserved).max()),
            unit="%",
            at_most=RESERVED_MAX if from_two else None,
            note="both through the model of the allocator",
        ),
        Figure(what=f"fit, {what}: median error", value=float(np.median(np.abs(ours))), unit="%", note=note),
        Figure(
            what=f"fit, {what}: 90 % are within",
            value=float(np.percentile(np.abs(ours), 90)),
            unit="%",
            at_most=P90_MAX if from_two else None,
        ),
        Figure(
            what=f"fit, {what}: furthest over",
            value=float(ours.max()),
            unit="%",
            at_most=WORST_MAX if from_two else None,
        ),
        Figure(
            what=f"fit, {what}: furthest under",
            value=float(-ours.min()),
            unit="%",
            at_most=WORST_MAX if from_two else ONE_UNDER_MAX,
        ),
        Figure(
            what=f"naive, {what}: 90 % are within", value=float(np.percentile(np.abs(naive), 90)), unit="%"
        ),
        Figure(what=f"naive, {what}: furthest off", value=float(np.abs(naive).max()), unit="%"),
    ]


def _largest_misses(path: str, peaks: dict[int, int]) -> list[int]:
    """By how many the largest batch is off, on devices that just hold a recorded one."""
    with connect(path) as queries:
        answers = {size: queries.fit(recorded=list(peaks), in_bytes=peak) for size, peak in peaks.items()}
    return [
        abs(answer.figures["largest_size"] - size)
        for size, answer in answers.items()
        if answer.verdict != "cannot tell"
    ]


def _mixed(options: Options) -> Figure:
    path = options.folder / "mixed.duckdb"
    record("llama", "batch", (2, 4), path, autocast=(4,))
    with connect(path) as queries:
        answer = queries.fit(recorded=[2, 4])
    return Figure(
        what="a size with autocast beside one without is refused",
        value=float(answer.verdict == "cannot tell"),
        at_least=1.0,
        note=answer.sentence,
    )
