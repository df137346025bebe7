"""How often the ranks that stand out are those with a planted fault, beside a naive rule on the same jobs.

Stage: tests and benchmarks. In: seeds of ``made_jobs``. Out: precision, recall, how often the cause is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from made_jobs import CATEGORIES, MadeJob, made_job
from rankmem_aggregator.insights.explaining import Bytes, inferred
from rankmem_aggregator.insights.peers import Standing, median_peer, standing_of, with_pairs

SKEW = 1.2
"""The naive rule: a rank that holds 20 % more than the median."""


@dataclass(slots=True)
class Score:
    """Counts of ranks."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    named: int = 0
    """Of the right ones those whose faulty category is named first."""

    @property
    def precision(self) -> float:
        """Of the ranks named, how many are faulty."""
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Of the faulty ranks, how many are named."""
        return self.right / max(1, self.right + self.missed)

    @property
    def causes(self) -> float:
        """Of the right ones, the share whose cause is right."""
        return self.named / max(1, self.right)

    def add(self, found: set[int], faulty: set[int]) -> None:
        """Counts one job."""
        self.right += len(found & faulty)
        self.wrong += len(found - faulty)
        self.missed += len(faulty - found)


def measured(
    seeds: Iterable[int], *, experts: bool | None = None, world: int = 1024, is_inferred: bool = False
) -> tuple[Score, Score]:
    """Our score and the naive rule's.

    Args:
        seeds: a job each.
        experts: whether the jobs have experts; None: each third.
        world: ranks.
        is_inferred: whether coordinates are kept back.
    """
    ours, naive = Score(), Score()
    for seed in seeds:
        job = made_job(seed, world=world, has_experts=seed % 3 == 0 if experts is None else experts)
        totals = job.groups.sum(axis=0).astype(np.float64)
        faulty = faulty_ranks(job)
        standing = standing_in(job, totals, is_inferred=is_inferred)
        found = {int(rank) for rank in standing.ranks}
        # A group of ranks of some coordinates is no fault of its ranks; a host is.
        for level in standing.levels:
            if level.coordinate == "host":
                found |= {int(rank) for rank in level.ranks}
        ours.add(found, set(faulty))
        for rank in found & set(faulty):
            peer = median_peer(totals, standing, rank, np.array(sorted(found)))
            change = job.groups[:, rank] - job.groups[:, peer]
            ours.named += CATEGORIES[int(np.argmax(np.abs(change)))] == faulty[rank]
        naive.add(set(np.nonzero(totals > SKEW * np.median(totals))[0].tolist()), set(faulty))
    return ours, naive


def faulty_ranks(job: MadeJob) -> dict[int, str]:
    """All faulty ranks, those of faulty hosts too, with the category."""
    of_hosts = {
        int(rank): kind for host, kind in job.host_faults.items() for rank in np.nonzero(job.hosts == host)[0]
    }
    return of_hosts | job.faults


def standing_in(job: MadeJob, totals: Bytes, *, is_inferred: bool) -> Standing:
    """What stands out in it, asked as the insight asks."""
    hosts = {"host": job.hosts}
    if is_inferred:
        return standing_of(totals, inferred(totals, np.arange(len(totals)), len(totals)), hosts)
    labels = {name: own for name, own in job.coordinates.items() if own.max() > 0}
    pairs = with_pairs(labels)
    return standing_of(totals, labels, {**pairs, **hosts} if job.has_experts else {**hosts, **pairs})
