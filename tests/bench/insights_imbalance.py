"""Which ranks stand out: precision and recall on jobs that never ran, beside a naive rule; and how fast.

The jobs are those of ``made_jobs``, from seeds that nothing was tuned on.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from harness import Figure, Options, of_samples

from made_jobs import made_job
from peers_measured import measured, standing_in

JOBS: Final = 60
QUICK_JOBS: Final = 10
FIRST_SEED: Final = 20_000
MANY_RANKS: Final = 9984
"""The multiple of 64 that is nearest to 10,000."""
BUDGET_S: Final = 1.0


def measure(options: Options) -> list[Figure]:
    """All figures of this insight."""
    seeds = range(FIRST_SEED, FIRST_SEED + (QUICK_JOBS if options.quick else JOBS))
    figures = []
    for what, experts, is_inferred, floor in (
        ("a third with experts", None, False, (0.88, 0.85)),
        ("without experts", False, False, (0.95, 0.95)),
        ("all with experts", True, False, (None, None)),
        ("without experts, layout inferred", False, True, (None, None)),
    ):
        ours, naive = measured(seeds, experts=experts, is_inferred=is_inferred)
        note = (
            f"{len(seeds)} jobs of 1,024 ranks: {ours.right} found, {ours.wrong} false, {ours.missed} missed"
        )
        figures += [
            Figure(what=f"{what}: precision", value=ours.precision, at_least=floor[0], note=note),
            Figure(what=f"{what}: recall", value=ours.recall, at_least=floor[1]),
            Figure(what=f"{what}: cause named rightly", value=ours.causes),
            Figure(what=f"{what}, naive (20 % over the median): precision", value=naive.precision),
            Figure(what=f"{what}, naive: recall", value=naive.recall),
        ]
    return [*figures, *_speed()]


def _speed() -> list[Figure]:
    job = made_job(FIRST_SEED, world=MANY_RANKS, has_experts=True)
    totals = job.groups.sum(axis=0).astype(np.float64)
    figures = []
    for what, is_inferred in (("known", False), ("inferred", True)):
        samples = []
        for _ in range(5):
            began = time.monotonic()
            standing_in(job, totals, is_inferred=is_inferred)
            samples.append(time.monotonic() - began)
        figures.append(
            of_samples(f"{MANY_RANKS:,} ranks compared, layout {what}", samples, "s", at_most=BUDGET_S)
        )
    return figures
