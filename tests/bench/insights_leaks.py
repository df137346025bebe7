"""What leaks: how often the rule is right on recorded trainings, beside naive rules, and how long it takes.

110 trainings of the kinds that the rule was tuned on, 60 of models and kinds that it was not, series of noise
and of caches that fill at random, and ten million events of 64 ranks of which every fourth leaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
from harness import Figure, Options, of_samples, say
from numpy.typing import NDArray
from synthetic_database import SESSION, STEADY, fill, fill_blocks, fill_progress

from leak_runs import Case, Judged, earlier_cases, held_out_cases, judge, record
from rankmem_aggregator import connect
from rankmem_aggregator.insights.trend import grows_only_in, trend_of
from rankmem_aggregator.sql import install_views
from rankmem_aggregator.store import schema

EVENTS: Final = 10_000_000
QUICK_EVENTS: Final = 3_000_000
"""22 steps: of fewer than ten nothing can be told."""
BUDGET_S: Final = 5.0
SESSION_CASES: Final = 10
"""Trainings recorded in one session."""
QUICK_CASES: Final = 6
SERIES: Final = 1500
MIB: Final = 1 << 20
_KEPT: Final = """
UPDATE packed.allocation_record SET freed_seq = NULL, freed_ns = NULL
WHERE rank % 4 = 0 AND allocation_id % 2048 = 77
"""
"""Of every fourth rank a block of each step stays."""


def measure(options: Options) -> list[Figure]:
    """All figures of this insight."""
    figures = [*_series(options), *_speed(options)]
    for what, cases, floor in (
        ("held-out trainings", held_out_cases(), (0.97, 0.95)),
        ("earlier trainings", earlier_cases(), (1.0, 1.0)),
    ):
        some = _spread(cases, QUICK_CASES) if options.quick else cases
        judged: list[Judged] = []
        for first in range(0, len(some), SESSION_CASES):
            path = options.folder / f"{what.split('-')[0].split()[0]}{first}.duckdb"
            own = some[first : first + SESSION_CASES]
            record(own, path)
            judged += judge(own, path)
        figures += scores(what, judged, *floor)
    return figures


def scores(what: str, judged: Sequence[Judged], precision: float, recall: float) -> list[Figure]:
    """Precision and recall of our rule, and of the naive ones on the same recordings."""
    rules: dict[str, Callable[[Judged], bool]] = {
        "a line grows": lambda each: each.grows,
        "naive: R² > 0.8 on the total": lambda each: each.by_r_squared,
        "naive: total creeps by 1 %": lambda each: each.by_creep,
    }
    figures = []
    for name, says in rules.items():
        right = sum(says(each) and each.case.leaks for each in judged)
        wrong = sum(says(each) and not each.case.leaks for each in judged)
        missed = sum(not says(each) and each.case.leaks for each in judged)
        note = f"{len(judged)} trainings: {right} found, {wrong} false, {missed} missed"
        ours = name == "a line grows"
        for figure, value, floor in (
            ("precision", right / max(1, right + wrong), precision),
            ("recall", right / max(1, right + missed), recall),
        ):
            figures.append(
                Figure(
                    what=f"{what}, {name}: {figure}", value=value, at_least=floor if ours else None, note=note
                )
            )
    return figures


def _spread(cases: Sequence[Case], number: int) -> list[Case]:
    return list(cases[:: len(cases) // number])[:number]


def _series(options: Options) -> list[Figure]:
    """How often series without a leak are taken for one."""
    rng = np.random.default_rng(7)
    rounds = 200 if options.quick else SERIES
    made: dict[str, Callable[[int], NDArray[np.float64]]] = {
        "independent noise": lambda n: rng.normal(size=n),
        "a cache of 12 that fills at random": lambda n: _coupons(rng.integers(0, 12, n)),
        "a random walk": lambda n: np.cumsum(rng.normal(size=n)),
    }
    figures = []
    for name, make in made.items():
        for steps in (20, 30, 60, 200):
            found = sum(
                trend_of((1e8 + MIB * make(steps)).astype(np.int64)).growth == "leak" for _ in range(rounds)
            )
            most = {"independent noise": 0.0}.get(name, 5.0 if "cache" in name and steps >= 60 else None)
            figures.append(
                Figure(
                    what=f"{name}, {steps} steps: taken for a leak",
                    value=100 * found / rounds,
                    unit="%",
                    at_most=most,
                )
            )
    return figures + _caches_by_length(rng, rounds)


def _caches_by_length(rng: np.random.Generator, rounds: int) -> list[Figure]:
    """How often a cache by the length of inputs, of 64 at random, is taken for a leak; by growth alone, too.

    Beside it leaks at random of the same inputs: how many of those that grow are taken for such a cache.
    """
    figures = []
    for steps in (20, 30, 60, 200):
        alone = ours = hidden = leaking = 0
        for _ in range(rounds):
            lengths = rng.integers(64, 128, steps)
            first = np.unique(lengths, return_index=True)[1]
            is_first = np.isin(np.arange(steps), first)
            cache = np.cumsum(np.where(is_first, lengths * 4000, 0))
            grows = trend_of(cache).growth == "leak"
            alone += grows
            ours += grows and not grows_only_in(cache, first.tolist())
            leak = np.cumsum((rng.random(steps) < rng.choice((1, 0.5, 0.2, 0.1))) * MIB)
            if trend_of(leak).growth == "leak":
                leaking += 1
                hidden += grows_only_in(leak, first.tolist())
        what = f"a cache of 64 lengths, {steps} steps"
        figures += [
            Figure(what=f"{what}: taken for a leak", value=100 * ours / rounds, unit="%"),
            Figure(what=f"{what}: naive, by growth alone", value=100 * alone / rounds, unit="%"),
            Figure(
                what=f"leaks at random beside 64 lengths, {steps} steps: taken for a cache",
                value=100 * hidden / max(1, leaking),
                unit="%",
                at_most=0.5,
                note=f"of {leaking} that grow",
            ),
        ]
    return figures


def _coupons(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    seen: set[int] = set()
    sizes = []
    for key in keys:
        seen.add(int(key))
        sizes.append(len(seen))
    return np.array(sizes, float)


def _speed(options: Options) -> list[Figure]:
    path = options.folder / "speed.duckdb"
    events = made_database(path, QUICK_EVENTS if options.quick else EVENTS)
    samples = []
    with connect(path) as queries:
        for _ in range(3):
            began = time.monotonic()
            answer = queries.leaks(SESSION)
            samples.append(time.monotonic() - began)
    assert answer.verdict == "finding", answer.sentence
    return [of_samples(f"rankmem leaks over {events:,} events of 64 ranks", samples, "s", at_most=BUDGET_S)]


def made_database(path: Path, events: int) -> int:
    """A synthetic job whose every fourth rank keeps a block of each step; returns how many events it has."""
    with duckdb.connect(str(path)) as connection:
        schema.prepare(connection)
        install_views(connection)
        made = fill(connection, STEADY, events)
        fill_blocks(connection, STEADY, made)
        connection.execute(_KEPT)
        fill_progress(connection)
    say(f"{made:,} events")
    return made
