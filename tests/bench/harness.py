"""What every benchmark shares: alternating runs, medians, one table, the facts of the machine.

Stage: outside the way of the data. A benchmark is a function from :class:`Options` to figures; this
module parses the command line, runs it and prints a Markdown table, so that a result can be pasted
into ``docs/benchmarks.md``. Machines are noisy: two things are compared by taking turns in one run,
never by numbers of different runs. No time is asserted: a budget that is missed is printed as such.
What must hold on any machine, as that two answers are the same, makes the program fail.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[1] / "support"))  # for what tests share, such as spool_synthetic

PACKAGES: Final = ("torch", "duckdb", "grpcio", "pyarrow", "numpy")
"""Whose versions change the numbers."""

SHARED_BYTES_MIN: Final = 4 * 2**30
"""What the largest benchmark puts into spools at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a benchmark is to run."""

    quick: bool
    """Small sizes: minutes become seconds, and the figures rougher."""
    folder: Path
    """An empty folder on disk, deleted afterwards."""
    memory_folder: Path
    """The same in shared memory where it has room: there spools lie by default."""
    picture: Path | None = None
    """Where to draw the run's curves, for a benchmark that has some."""
    seconds: float | None = None
    """How long to measure, for a benchmark that can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number beside its budget."""

    what: str
    value: float
    unit: str = ""
    """Empty for a ratio."""
    at_most: float | None = None
    at_least: float | None = None
    low: float | None = None
    """Lower and upper quartile of what ``value`` is the median of, where it was repeated."""
    high: float | None = None
    repeats: int = 0
    note: str = ""
    must: bool = False
    """Whether the benchmark has failed where the budget is missed: an answer is wrong, however fast."""

    def verdict(self) -> str:
        """``met`` or ``MISSED``; empty without a budget."""
        if self.at_most is None and self.at_least is None:
            return ""
        too_high = self.at_most is not None and self.value > self.at_most
        too_low = self.at_least is not None and self.value < self.at_least
        return "MISSED" if too_high or too_low else "met"


Measure = Callable[[Options], Sequence[Figure]]


def alternate(
    variants: Mapping[str, Callable[[], float]], rounds: int, say: Callable[[str], None] | None = None
) -> dict[str, list[float]]:
    """Samples of each variant, taken in turn; every other round goes backwards, so that a drift cancels."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        names = list(variants) if number % 2 == 0 else list(reversed(variants))
        for name in names:
            samples[name].append(variants[name]())
            if say is not None:
                say(f"round {number + 1}/{rounds} {name}: {samples[name][-1]:.6g}")
    return samples


def of_samples(what: str, samples: Sequence[float], unit: str, *, note: str = "", **budget: float) -> Figure:
    """The samples' median with their quartiles."""
    low, high = quartiles(samples)
    return Figure(
        what=what,
        value=statistics.median(samples),
        unit=unit,
        low=low,
        high=high,
        repeats=len(samples),
        note=note,
        **budget,
    )


def of_ratio(
    what: str, top: Sequence[float], bottom: Sequence[float], *, note: str = "", **budget: float
) -> Figure:
    """The ratio of the two medians; its quartiles are those of the ratios within each round."""
    low, high = quartiles([t / b for t, b in zip(top, bottom, strict=True)])
    value = statistics.median(top) / statistics.median(bottom)
    return Figure(what=what, value=value, low=low, high=high, repeats=len(top), note=note, **budget)


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """Lower and upper quartile; of a single sample, itself."""
    if len(samples) < 2:
        return samples[0], samples[0]
    cuts = statistics.quantiles(samples, n=4, method="inclusive")
    return cuts[0], cuts[2]


def say(text: str) -> None:
    """Progress on stderr; stdout holds the table alone."""
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """The machine in words: cores, processor, memory. No names, no paths."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{cores} cores ({_processor()}), {memory_gib:.0f} GiB memory, load {load:.1f} at the start"


def versions() -> str:
    """Python's version and those of the packages that are installed of :data:`PACKAGES`."""
    found = [f"python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def main(name: str, title: str, measure: Measure) -> None:
    """Runs one benchmark as a program: ``NAME.py [--quick] [--json FILE] [--seconds S] [--picture PNG]``."""
    parser = argparse.ArgumentParser(prog=name, description=title)
    parser.add_argument("--quick", action="store_true", help="small sizes: rough figures in a minute or two")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="draw the curves there, if there are any")
    parser.add_argument("--seconds", type=float, help="how long to measure, where that can be told")
    arguments = parser.parse_args()
    told = ["--quick"] if arguments.quick else []
    told += [f"--seconds {arguments.seconds:g}"] if arguments.seconds else []
    command = " ".join([f"python tests/bench/{name}.py", *told])
    head = {
        "benchmark": name,
        "title": title,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": versions(),
        "command": command,
    }
    with scratch_folder() as folder, scratch_folder(_memory()) as memory_folder:
        options = Options(
            quick=arguments.quick,
            folder=folder,
            memory_folder=memory_folder,
            picture=arguments.picture,
            seconds=arguments.seconds,
        )
        figures = measure(options)
    print(render(head, figures), flush=True)
    if arguments.json is not None:
        rows = [{**asdict(figure), "verdict": figure.verdict()} for figure in figures]
        arguments.json.write_text(json.dumps({**head, "figures": rows}, indent=1))
    if wrong := failed(figures):
        sys.exit(f"Error: {wrong}\nTry: the same question of both, and compare the rows")


def failed(figures: Sequence[Figure]) -> str:
    """What must hold and does not, with the notes; empty where all does."""
    wrong = [figure for figure in figures if figure.must and figure.verdict() == "MISSED"]
    return "; ".join(f"{figure.what}: {_number(figure.value)}, {figure.note}" for figure in wrong)


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder there (default ``$TMPDIR``), gone afterwards whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="rankmem-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def render(head: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """The result as Markdown: a heading, the facts of the run, a row for each figure."""
    lines = [
        f"## {head['benchmark']}: {head['title']}",
        "",
        f"{head['date']} · {head['machine']} · {head['versions']} · `{head['command']}`",
        "",
        "| what | measured | middle half | budget | |",
        "|---|---:|---|---|---|",
    ]
    lines += [_row(figure) for figure in figures]
    return "\n".join([*lines, ""])


def _memory() -> Path | None:
    """Shared memory, if some GiB are free in it; else None, the disk."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and shutil.disk_usage(shared).free > SHARED_BYTES_MIN else None


def _row(figure: Figure) -> str:
    spread = ""
    if figure.low is not None and figure.high is not None and figure.repeats > 1:
        spread = f"{_number(figure.low)} to {_number(figure.high)} ({figure.repeats})"
    budget = ""
    if figure.at_most is not None:
        budget = f"≤ {_number(figure.at_most)}"
    elif figure.at_least is not None:
        budget = f"≥ {_number(figure.at_least)}"
    last = " ".join(part for part in (figure.verdict(), figure.note) if part)
    measured = f"{_number(figure.value)} {figure.unit}".rstrip()
    return f"| {figure.what} | {measured} | {spread} | {budget} | {last} |"


def _number(value: float) -> str:
    """Three or four significant digits; thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
