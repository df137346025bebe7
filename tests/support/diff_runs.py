"""Records trainings before and after changes, and compares each pair: our way beside plain medians.

Stage: tests and benchmarks. In: cases. Out: what was said of each. All trainings of a model are recorded as
one rank, one after another, and nothing of one is left when the next begins: a side of a pair is a range of
the rank's steps. ``diff_runs.py CASE,...`` is the program that is recorded, which starts the ranks.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

SCRIPT: Final = Path(__file__).parent / "diff_trainings.py"
MODELS: Final = ("mlp", "gru", "transformer", "autoencoder", "waves")
"""None of those on which the method was made."""
VARIES: Final = ("nothing", "batch", "length", "both")
NAIVE_SHARE: Final = 0.02
"""From which on plain medians count."""


@dataclass(frozen=True, slots=True)
class Training:
    """One of a pair."""

    model: str
    varies: str
    steps: int
    seed: int
    change: str = "nothing"

    def argument(self) -> str:
        """That of ``diff_trainings.py``."""
        return ",".join((self.model, self.varies, str(self.steps), str(self.seed), self.change))


@dataclass(frozen=True, slots=True)
class Case:
    """A training; again with another seed and number of steps; so with a change; the change with its seed."""

    base: Training
    again: Training
    changed: Training
    paired: Training

    def trainings(self) -> tuple[Training, ...]:
        """In the order in which they are recorded."""
        return self.base, self.again, self.changed, self.paired


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of a pair of trainings."""

    verdicts: dict[str, str | None]
    """By figure: worse, same, better."""
    share: float
    """By how much the peak of a step differs, as the answer has it."""
    naive_share: float
    """The same of the medians of all steps but the first two."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A case, and what was said of it."""

    case: Case
    again: Said
    changed: Said
    true_share: float
    """By how much the change raised the peak in the same steps, one by one."""


def cases_of(model: str, first_seed: int) -> list[Case]:
    """One for each way in which inputs vary."""
    import diff_trainings

    rng = random.Random(f"{model}{first_seed}")
    names = [each.__name__ for each in diff_trainings.CHANGES]
    made = []
    for number, varies in enumerate(VARIES):
        change = names[(MODELS.index(model) + number * 2) % len(names)]
        seed = first_seed + 1000 * MODELS.index(model) + 10 * number
        steps = [rng.randint(22, 32) for _ in range(3)]
        base = Training(model, varies, steps[0], seed)
        again = Training(model, varies, steps[1], seed + 1)
        changed = Training(model, varies, steps[2], seed + 2, change)
        made.append(Case(base, again, changed, Training(model, varies, steps[0], seed, change)))
    return made


def record(cases: Sequence[Sequence[Case]], database: Path) -> None:
    """Records the cases of each model as a rank of a session.

    Raises:
        subprocess.CalledProcessError: if a training fails.
    """
    ranks = [" ".join(each.argument() for case in own for each in case.trainings()) for own in cases]
    command = [sys.executable, "-m", "rankmem_cli", "run", "--no-diagnose", "--db", str(database), "--"]
    subprocess.run([*command, sys.executable, str(Path(__file__).resolve()), *ranks], check=True)


def judge(cases: Sequence[Sequence[Case]], database: Path) -> list[Judged]:
    """What is said of each case."""
    from rankmem_aggregator import connect
    from rankmem_aggregator.insights.diff_steps import Steps

    with connect(database) as queries:
        rows = queries._ask("steps_with_inputs", session=queries.session_id(None), arguments=None).to_pylist()
    found = []
    for rank, own in enumerate(cases):
        steps = [row for row in rows if row["rank"] == rank]
        for case in own:
            parts = []
            for training in case.trainings():
                own_steps = steps[2 : training.steps]
                parts.append(Steps(rows=own_steps, every=own_steps))
                del steps[: training.steps]
            base, again, changed, paired = parts
            true = paired.values("peak_bytes") / base.values("peak_bytes") - 1
            found.append(Judged(case, _said(base, again), _said(base, changed), float(np.median(true))))
        assert not steps, "steps of a rank are left over"
    return found


def _said(base: object, head: object) -> Said:
    from rankmem_aggregator.insights.diff import judge_steps
    from rankmem_aggregator.insights.diff_steps import Steps

    assert isinstance(base, Steps)
    assert isinstance(head, Steps)
    figures = judge_steps((0, "cpu"), base, head, "input_bytes")
    peak = next(each.figure for each in figures if each.what == "peak")
    medians = [float(np.median(each.values("peak_bytes"))) for each in (base, head)]
    return Said(
        {each.what: each.verdict for each in figures},
        peak.difference / peak.base,
        medians[1] / medians[0] - 1,
    )


def _train_all(ranks: Sequence[str]) -> None:
    """The program that is recorded: a process for each rank, as a launcher starts them, but one by one."""
    for rank, trainings in enumerate(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(ranks))}
        subprocess.run(
            [sys.executable, str(SCRIPT), *trainings.split()],
            check=True,
            env={**os.environ, **place, "LOCAL_WORLD_SIZE": str(len(ranks))},
        )


if __name__ == "__main__":
    _train_all(sys.argv[1:])
