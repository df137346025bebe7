"""Records trainings with and without a remedy and holds the predicted peak against the real one.

Stage: tests and benchmarks. In: a model, what is recorded and what it becomes. Out: the share by which the
predicted peak is above the real one, beside the naive way's: the bytes that the remedy touches, subtracted at
the peak.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rankmem_aggregator import connect
from rankmem_aggregator.insights.edits import Edit, Step, scaled
from rankmem_aggregator.insights.whatif import remedies_of
from rankmem_aggregator.insights.windows import place_of, read_window, step_sizes

SCRIPT: Final = Path(__file__).parent / "remedy_trainings.py"
BATCH: Final = 8
PORT: Final = 29650
STEPS: Final = 4
"""Of each change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A remedy: the training that is recorded, and the one that it becomes."""

    model: str
    before: str
    after: str
    remedy: str
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Shares by which predicted peaks are above the real one."""

    pair: Pair
    ours: float
    naive: float
    before_bytes: int
    real_bytes: int
    predicted_bytes: int


ALONE: Final = ("base", "checkpoint", "chunks", "plain", "momentum", "foreach", "kept", "late", "accumulate")
"""Changes of one rank, in the order in which they are recorded."""
TOGETHER: Final = ("base", "zero1", "fsdp", "views")
"""Those of two ranks."""
STATE_SHARES: Final = {"none": 0.0, "half": 0.5}
_OF_ALL: Final = (
    ("base", "checkpoint", "checkpoint"),
    ("base", "plain", "none"),
    ("base", "momentum", "half"),
    ("base", "foreach", "foreach"),
    ("kept", "base", "set-to-none"),
    ("late", "base", "let-go"),
    ("base", "accumulate", "accumulate"),
)
_OF_WORDS: Final = (("base", "chunks", "chunks"),)
_OF_TWO: Final = (("base", "zero1", "zero1"), ("base", "fsdp", "fsdp"), ("base", "views", "bucket-view"))


def pairs_of(model: str, ranks: int = 1) -> list[Pair]:
    """The pairs of a model: before, after and the remedy; ``none`` and ``half``: of the optimizer's state."""
    wanted = _OF_TWO if ranks > 1 else _OF_ALL + (_OF_WORDS if model != "mixer" else ())
    return [
        Pair(model=model, before=before, after=after, remedy=remedy, ranks=ranks)
        for before, after, remedy in wanted
    ]


def record(model: str, database: Path, *, ranks: int = 1, changes: Sequence[str] = ()) -> None:
    """Trains with one change after another in a process, as a new session of a database.

    Raises:
        subprocess.CalledProcessError: if the training fails.
    """
    launched = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(PORT)]
    recorder = [sys.executable, "-m", "rankmem_cli", "run", "--no-diagnose", "--db", str(database), "--"]
    command = [*recorder, sys.executable]
    all_changes = changes or (TOGETHER if ranks > 1 else ALONE)
    own = [*(launched if ranks > 1 else []), str(SCRIPT), model, ",".join(all_changes), str(BATCH)]
    subprocess.run([*command, *own], check=True)


def read(
    database: Path, rank: int = 0, changes: Sequence[str] = ALONE
) -> dict[str, tuple[Step, dict[str, int]]]:
    """By change its last step, and the bytes of the parameters, of a rank of the newest session."""
    with connect(database) as queries:
        session = queries.session_id()
        place = place_of(queries._ask, session, rank=rank)
        sizes = step_sizes(queries._ask, place)
        assert len(sizes) == STEPS * len(changes)
        rows = queries._ask("weights", session=session, rank=rank).to_pylist()
        weights = {row["name"]: row["size_bytes"] for row in rows}
        return {
            change: (Step.of_window(read_window(queries._ask, place, sizes[STEPS * number - 1])), weights)
            for number, change in enumerate(changes, 1)
        }


def judge(pair: Pair, before: tuple[Step, dict[str, int]], after: Step) -> Judged:
    """What our way and the naive one say of a pair."""
    step, weights = before
    lives = step.lives()
    edit = _edit(pair, step, weights)
    edited = edit(step, lives)
    peak, at = lives.peak()
    predicted, real = edited.peak()[0], after.lives().peak()[0]

    def alive(each: object) -> float:
        found = edited if each is edited else lives
        return float(found.bytes[(found.born <= at) & (found.died > at)].sum())

    naive = peak - (alive(lives) - alive(edited))
    return Judged(
        pair=pair,
        ours=predicted / real - 1,
        naive=naive / real - 1,
        before_bytes=round(peak),
        real_bytes=round(real),
        predicted_bytes=round(predicted),
    )


def _edit(pair: Pair, step: Step, weights: dict[str, int]) -> Edit:
    if pair.remedy in STATE_SHARES:
        return scaled({"optimizer_state": STATE_SHARES[pair.remedy]})
    found = {each.name: each for each in remedies_of(step, weights, max(pair.ranks, 2), pair.ranks > 1)}
    return found[pair.remedy].edit


def worst(judged: Sequence[Judged]) -> float:
    """The largest error of ours."""
    return float(np.abs([each.ours for each in judged]).max())
