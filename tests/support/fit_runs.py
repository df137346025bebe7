"""Records trainings at several sizes and holds what is predicted for one size against what it held.

Stage: tests and benchmarks. In: a model and sizes. Out: errors, ours beside those of the naive ways on the
same steps: a line through the two peaks, and a peak in proportion to the size.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_aggregator import connect
from rankmem_aggregator.insights.capacity import reserved_and_needed, trace_at
from rankmem_aggregator.insights.fit_sizes import Recorded, read_sizes
from rankmem_aggregator.insights.laws import of_one, of_two
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.settings import Settings
from rankmem_aggregator.insights.windows import place_of, step_sizes

SCRIPT: Final = Path(__file__).parent / "fit_trainings.py"
BATCHES: Final = (2, 3, 4, 8, 16, 32)
LENGTHS: Final = (16, 32, 48, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One size, predicted from others; each figure is the share by which it is above the real one."""

    model: str
    what: str
    known: tuple[int, ...]
    size: int
    ours: float | None
    """None where it was refused."""
    naive: float
    """From two sizes a line through the peaks, from one the peak in proportion."""
    reserved: float | None
    """Of the bytes reserved, ours, both through the model of the allocator."""


def record(
    model: str, what: str, sizes: Sequence[int], database: Path, *, autocast: Sequence[int] = ()
) -> None:
    """Trains three steps of each size as a new session of a database.

    Raises:
        subprocess.CalledProcessError: if the training fails.
    """
    texts = [",".join(map(str, part)) for part in (sizes, autocast or [0])]
    command = [sys.executable, "-m", "rankmem_cli", "run", "--no-diagnose", "--db", str(database), "--"]
    subprocess.run([*command, sys.executable, str(SCRIPT), model, what, *texts], check=True)


def read(database: Path, sizes: Sequence[int]) -> list[Recorded]:
    """The steady steps of the newest session."""
    with connect(database) as queries:
        place = place_of(queries._ask, queries.session_id(), rank=None)
        return read_sizes([(queries._ask, place, step_sizes(queries._ask, place))], sizes)


def predictions(model: str, what: str, recorded: Sequence[Recorded]) -> Iterator[Predicted]:
    """Each size from the pairs of neighbours below it, the smallest from the pairs above it, larger ones from
    one."""
    for one, two in itertools.pairwise(recorded):
        for wanted in recorded:
            if wanted is not one and wanted is not two:
                yield _from(model, what, (one, two), wanted)
    if what == "batch":
        for one, wanted in itertools.combinations(recorded, 2):
            yield _from(model, what, (one,), wanted)


def _from(model: str, what: str, known: Sequence[Recorded], wanted: Recorded) -> Predicted:
    peaks = [each.window.peak()[0] for each in known]
    base = min(known, key=lambda each: abs(each.size - wanted.size))
    if len(known) == 1:
        found = of_one(base.window, base.size)
        naive = peaks[0] * wanted.size / base.size
    else:
        (other,) = [each for each in known if each is not base]
        found = of_two(base.window, base.size, other.window, other.size)
        slope = (peaks[1] - peaks[0]) / (known[1].size - known[0].size)
        naive = peaks[1] + slope * (wanted.size - known[1].size)
    real = wanted.window.peak()[0]
    ours: float | None
    try:
        found.refuse(what)
        sizes = found.sizes_at(wanted.size)
        ours = found.window.peak(sizes)[0] / real - 1
        real_reserved = reserved_and_needed(trace_at(wanted.window, wanted.window.bytes, Settings()))[0]
        reserved = reserved_and_needed(trace_at(found.window, sizes, Settings()))[0] / real_reserved - 1
    except CannotTell:
        ours = reserved = None
    return Predicted(
        model=model,
        what=what,
        known=tuple(int(each.size) for each in known),
        size=int(wanted.size),
        ours=ours,
        naive=naive / real - 1,
        reserved=reserved,
    )
