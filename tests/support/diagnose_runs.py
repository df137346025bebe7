"""Records trainings with one planted cause each, and what diagnose finds in them.

Stage: tests and benchmarks. In: a cause. Out: what was found, beside the naive answer (the largest category
at the peak) and the real peak of the same training without the cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import leak_runs
import remedy_runs
from rankmem_aggregator import connect
from rankmem_aggregator.insights.whatif import FINDING_SHARE
from rankmem_aggregator.query.queries import Queries

STEPS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A training with a cause, and the same one without it."""

    model: str
    change: str
    kind: str | None
    """Of the finding that names the cause; None: the training has no cause."""
    category: str | None = None
    """Of the cause's bytes: the naive answer is right where this is the largest."""

    @property
    def is_leak(self) -> bool:
        """Whether it is one of the trainings that leak or do not."""
        return self.model in ("mlp", "gru", "waves")

    def without(self) -> Planted:
        """The training without the cause; of a leak with the same work, of which the last result is kept."""
        mended = "nothing" if self.kind is None else f"{self.change}_mended"
        return Planted(model=self.model, change=mended if self.is_leak else "base", kind=None)


ALL: Final = (
    *(
        Planted(model=model, change=change, kind="leak", category=category)
        for model, change, category in (
            ("mlp", "outputs_by_step", "activation"), ("gru", "summed_validation", "activation"),
            ("waves", "snapshots", "unknown"), ("mlp", "cached_by_step", "unknown"),
            ("gru", "predictions_never_reset", "unknown"), ("waves", "gradients_each_third", "unknown"),
        )
    ),
    *(
        Planted(model=model, change=change, kind=None)
        for model, change in (
            ("mlp", "metrics_reset"), ("gru", "average_from_ten"), ("waves", "bounded_cache"),
        )
    ),
    *(
        Planted(model=model, change=change, kind=kind, category=category)
        for model in ("llama", "wide", "mixer")
        for change, kind, category in (("kept", "remedy", "gradient"), ("late", "remedy", "activation"))
    ),
)  # fmt: skip
"""Leaks, what only looks like one, gradients that stay, steps let go of late; each also without its cause."""
FEW: Final = (ALL[0], ALL[6], Planted(model="wide", change="kept", kind="remedy", category="gradient"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """What was found in a training."""

    planted: Planted
    kinds: tuple[str, ...]
    peak_bytes: int
    peak_after: tuple[int, int] | None
    """At least and at most, as predicted, of the finding that names the cause."""
    largest: str
    """The category that holds most at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A training with its cause beside the same one without."""

    planted: Planted
    matters: bool
    """Whether it should be a finding: a leak, or a cause that raises the real peak by so much."""
    first: bool
    named: bool
    naive: bool
    error: float | None
    """Share by which the real peak without the cause is outside of what was predicted."""
    width: float | None
    """Of what was predicted, from least to most, in shares of that peak."""


def diagnosed(planted: Planted, database: Path) -> Diagnosed:
    """Records a training and asks."""
    if planted.is_leak:
        case = leak_runs.Case(planted.model, planted.change, "nothing", STEPS, 5, planted.kind == "leak")
        leak_runs.record([case], database)
    else:
        remedy_runs.record(planted.model, database, changes=(planted.change,))
    with connect(database) as queries:
        return _asked(planted, queries)


def _asked(planted: Planted, queries: Queries) -> Diagnosed:
    rows = queries.diagnose().rows.to_pylist()
    groups = queries.peak_by(by="category", rank=0).to_pylist()
    return Diagnosed(
        planted=planted,
        kinds=tuple(row["kind"] for row in rows),
        peak_bytes=max(row["peak_requested_bytes"] for row in queries.peak(rank=0).to_pylist()),
        peak_after=next(
            ((row["peak_after_least"], row["peak_after"]) for row in rows if row["kind"] == planted.kind),
            None,
        ),
        largest=max(groups, key=lambda row: row["bytes_at_rank_peak"])["group_name"] or "unknown",
    )


def judged(found: Diagnosed, without: Diagnosed) -> Judged:
    """What is right of it: a cause that neither leaks nor raises the real peak must not be found."""
    saved = found.peak_bytes - without.peak_bytes
    kind, real = found.planted.kind, without.peak_bytes
    least, most = found.peak_after or (0, 0)
    return Judged(
        planted=found.planted,
        matters=kind == "leak" or (kind is not None and saved >= FINDING_SHARE * found.peak_bytes),
        first=bool(found.kinds) and found.kinds[0] == kind,
        named=kind in found.kinds,
        naive=found.largest == found.planted.category,
        error=None if found.peak_after is None else max(0, least - real, real - most) / real,
        width=None if found.peak_after is None else (most - least) / real,
    )
