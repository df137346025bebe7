"""Records trainings that leak or do not, and judges each: our rule beside the naive ones on the same series.

Stage: tests and benchmarks. In: cases. Out: a verdict for each. The cases of a set are recorded as ranks of
one session, one process after another: ``leak_runs.py CASE ...`` is the program that ``rankmem run`` records.
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

SCRIPT: Final = Path(__file__).parent / "leak_trainings.py"
CREEP: Final = 1.01
R_SQUARED: Final = 0.8
WARM_UP: Final = 2
"""Of the naive rules, as those who use them have it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training."""

    model: str
    kind: str
    varies: str
    steps: int
    seed: int
    leaks: bool

    def arguments(self) -> list[str]:
        """Those of ``leak_trainings.py``."""
        return [self.model, self.kind, self.varies, str(self.steps), str(self.seed)]


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of a training."""

    case: Case
    grows: bool
    """A line that grows, however little."""
    finding: bool
    """One that will matter within 10,000 steps."""
    line: str
    """The first."""
    by_r_squared: bool
    by_creep: bool


def earlier_cases() -> list[Case]:
    """110 of the kinds that the rule was tuned on: 48 leak."""
    import leak_models
    import leak_trainings

    cases = [
        Case(model, kind.__name__, varies, 30, number, True)
        for number, kind in enumerate(leak_trainings.EARLIER_LEAKS)
        for model in ("gpt", "lstm")
        for varies in ("nothing", ("length", "batch")[number % 2])
    ]
    clean = [kind.__name__ for kind in leak_trainings.EARLIER_CLEAN]
    for number in range(62):
        model = leak_models.EARLIER[number % 6]
        varies = ("nothing", "batch", "length")[number // 18 % 3]
        cases.append(
            Case(model, clean[(number + number // 18) % len(clean)], varies, 30, 100 + number, False)
        )
    return cases


def held_out_cases() -> list[Case]:
    """60 of models and kinds that the rule was not tuned on: 30 leak."""
    import leak_models
    import leak_trainings

    rng = random.Random(1700)
    kinds = {True: leak_trainings.NEW_LEAKS, False: leak_trainings.NEW_CLEAN}
    return [
        Case(
            leak_models.NEW[(number + number // 12) % len(leak_models.NEW)],
            kinds[leaks][number % len(kinds[leaks])].__name__,
            ("nothing", "batch", "length")[number // 10],
            rng.choice((30, 40, 65)),
            number,
            leaks,
        )
        for leaks in (True, False)
        for number in range(30)
    ]


def record(cases: Sequence[Case], database: Path) -> None:
    """Records the cases as ranks 0, 1, ... of the newest session of a database.

    Raises:
        subprocess.CalledProcessError: if a training fails.
    """
    flat = [",".join(case.arguments()) for case in cases]
    command = [sys.executable, "-m", "rankmem_cli", "run", "--no-diagnose", "--db", str(database), "--"]
    subprocess.run([*command, sys.executable, str(Path(__file__).resolve()), *flat], check=True)


def judge(cases: Sequence[Case], database: Path) -> list[Judged]:
    """What our rule and the naive ones say of each."""
    from rankmem_aggregator import connect

    found = []
    with connect(database) as queries:
        for rank, case in enumerate(cases):
            answer = queries.leaks(rank=rank)
            assert answer.verdict != "cannot tell", (case, answer.sentence)
            rows = [row for row in answer.rows.to_pylist() if row["verdict"] not in ("cache", "stopped")]
            totals = queries.steps(rank=rank)["end_bytes"].to_pylist()
            found.append(
                Judged(
                    case,
                    grows=bool(rows),
                    finding=answer.verdict == "finding",
                    line=f"{rows[0]['line']} {rows[0]['operator']}" if rows else "",
                    by_r_squared=_by_r_squared(totals),
                    by_creep=totals[-1] > CREEP * totals[WARM_UP],
                )
            )
    return found


def _by_r_squared(totals: Sequence[int]) -> bool:
    import numpy as np

    values = np.array(totals[WARM_UP:], float)
    steps = np.arange(len(values))
    line = np.polyfit(steps, values, 1)
    rest = float(((values - np.polyval(line, steps)) ** 2).sum())
    whole = float(((values - values.mean()) ** 2).sum())
    return bool(line[0] > 0 and 1 - rest / max(whole, 1e-9) > R_SQUARED)


def _train_all(cases: Sequence[str]) -> None:
    """The program that is recorded: a process for each case, as a launcher starts ranks, but one by one."""
    for rank, case in enumerate(cases):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(cases))}
        subprocess.run(
            [sys.executable, str(SCRIPT), *case.split(",")],
            check=True,
            env={**os.environ, **place, "LOCAL_WORLD_SIZE": str(len(cases))},
        )


if __name__ == "__main__":
    _train_all(sys.argv[1:])
