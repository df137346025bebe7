"""How much longer a training step takes with rankmem, beside torch.profiler and memray.

Everything is on: tap, calls, stacks, hooks, a shipper, a real aggregator that stores into DuckDB. Two ways
of comparing: recording switched off and on in turn in one process (the same memory, the same minute; what
the hooks and an idle callback cost stays in both), and processes without and with the agent in turn
(all of it; noisier). The other tools run in the same rounds, on the same training. Programs of small
operators, where recording weighs most, are ``small_operators``'.
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
from harness import Figure, Options, alternate, main, of_ratio, of_samples, say
from processes import (
    Aggregator,
    aggregator,
    environment,
    recording_environment,
    torchrun,
    train,
    wait_until_quiet,
)
from small_operators import small_operators

from rankmem_aggregator import connect

AGENT: Final = ("-m", "rankmem_agent")
# Of one session alone: all sessions' events over one session's sequence would be nonsense. Ids sort by start.
_EVENTS_OF_NEWEST: Final = """
SELECT count(*) AS events, max(seq) + 1 AS records FROM memory_event
WHERE session_id = (SELECT max(session_id) FROM memory_event)
"""
SWITCH_STEPS: Final = 10  # long enough that the first step after a turn weighs little


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model, and how long to train it in one process."""

    name: str
    model: tuple[str, ...]
    steps: int
    quick_steps: int
    budget: float


SMALL: Final = Size(name="small GPT", model=("--batch", "4"), steps=200, quick_steps=60, budget=1.05)
LARGE: Final = Size(
    name="larger GPT", model=("--width", "256", "--batch", "16"), steps=25, quick_steps=12, budget=1.01
)


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    figures: list[Figure] = []
    with aggregator(options.folder / "bench.duckdb") as server:
        for size in (SMALL, LARGE):
            run = Run(options=options, server=server, size=size)
            figures += switched(run)
            figures += processes(run)
        figures += others(Run(options=options, server=server, size=SMALL))
        figures += small_operators(options, server)
    return [*figures, *two_ranks(options, SMALL)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the steps of one process took, in seconds."""

    wall_s: list[float]
    cpu_s: list[float]
    """CPU time of all its threads: what a busy machine changes little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A size under these options against this aggregator."""

    options: Options
    server: Aggregator
    size: Size

    def arguments(self, times: int = 1) -> list[str]:
        """The training's arguments for one process."""
        steps = self.size.quick_steps if self.options.quick else self.size.steps
        return [*self.size.model, "--steps", str(steps * times)]

    def rounds(self, full: int) -> int:
        """Rounds of alternation."""
        return 2 if self.options.quick else full

    def plain(self, before: Sequence[str] = (), extra: Sequence[str] = ()) -> Steps:
        """Steps without rankmem."""
        arguments = [*self.arguments(), *extra]
        return _steps(train(before, arguments, self.options.folder, environment()))

    def recorded(self, before: Sequence[str] = ()) -> Steps:
        """Steps that are recorded; returns when all is stored, so that nothing runs on."""
        spools = Path(tempfile.mkdtemp(dir=self.options.memory_folder))
        env = recording_environment(self.server.address, spools)
        result = train([*before, *AGENT], self.arguments(), self.options.folder, env)
        wait_until_quiet(spools)
        return _steps(result)


def switched(run: Run) -> list[Figure]:
    """On and off in one process, in blocks of some steps; the first step of a block is left out."""
    spools = Path(tempfile.mkdtemp(dir=run.options.memory_folder))
    env = recording_environment(run.server.address, spools)
    arguments = [*run.arguments(times=4), "--switch", str(SWITCH_STEPS)]
    result = train(AGENT, arguments, run.options.folder, env)
    wait_until_quiet(spools)
    on, off = _split(result["steps_s"], result["on"])
    cpu_on, cpu_off = _split(result["cpu_s"], result["on"])
    events = result["records_a_step"] * _events_a_record(run.server)
    added_ns = 1e9 * (statistics.median(on) - statistics.median(off)) / events
    name = run.size.name
    return [
        of_samples(f"{name}: step, recording off", _ms(off), "ms", note=f"{events:,.0f} events a step"),
        of_ratio(f"{name}: step, recording on / off, in one process", on, off, at_most=run.size.budget),
        of_ratio(f"{name}: its CPU time, recording on / off, in one process", cpu_on, cpu_off),
        Figure(what=f"{name}: an event, with its calls and stacks", value=added_ns, unit="ns", at_most=500),
    ]


def _split(steps_s: Sequence[float], flags: Sequence[bool]) -> tuple[list[float], list[float]]:
    """Steps with recording on and off, as many of each; the first of each block is left out."""
    kept = [pair for number, pair in enumerate(zip(steps_s, flags, strict=True)) if number % SWITCH_STEPS]
    on = [seconds for seconds, flag in kept if flag]
    off = [seconds for seconds, flag in kept if not flag]
    return on[: len(off)], off[: len(on)]


def _events_a_record(server: Aggregator) -> float:
    """Share of the spool's records that are events; the others are calls, steps, clocks."""
    with connect(server.address) as queries:
        row = queries.sql(_EVENTS_OF_NEWEST).to_pylist()[0]
    return float(row["events"]) / float(row["records"])


def processes(run: Run) -> list[Figure]:
    """Processes without and with the agent in turn."""
    return _compared(run, run.size.name, (), run.rounds(5))


def _compared(run: Run, name: str, before: Sequence[str], rounds: int) -> list[Figure]:
    """Trainings without and with the agent in turn; a sample is a process's median step."""
    cpu: dict[str, list[float]] = {"without": [], "with": []}

    def median(which: str, steps: Steps) -> float:
        cpu[which].append(statistics.median(steps.cpu_s))
        return statistics.median(steps.wall_s)

    samples = alternate(
        {
            "without": lambda: median("without", run.plain(before)),
            "with": lambda: median("with", run.recorded(before)),
        },
        rounds,
        partial(_say, name),
    )
    step = f"{name}: step with / without rankmem, processes in turn"
    return [
        of_samples(f"{name}: step without rankmem", _ms(samples["without"]), "ms"),
        of_ratio(step, samples["with"], samples["without"], at_most=run.size.budget),
        of_ratio(f"{name}: its CPU time, with / without, processes in turn", cpu["with"], cpu["without"]),
    ]


def others(run: Run) -> list[Figure]:
    """torch.profiler in exported cycles, and memray, on the same training; means, exports included."""
    variants: dict[str, Callable[[], float]] = {
        "plain": lambda: statistics.mean(run.plain().wall_s),
        "torch.profiler(profile_memory, with_stack), exported cycles": lambda: _under_profiler(run),
    }
    if importlib.util.find_spec("memray") is not None:
        variants["memray run --native"] = lambda: _under_memray(run)
    samples = alternate(variants, run.rounds(2), partial(_say, run.size.name))
    plain = samples.pop("plain")
    figures = [of_ratio(f"{run.size.name}: {name} / plain", taken, plain) for name, taken in samples.items()]
    if "memray run --native" not in samples:
        say("memray is not installed: not run (pip install memray)")
    return figures


def two_ranks(options: Options, size: Size) -> list[Figure]:
    """DDP on two ranks: as many as cores here, so that shipper and aggregator compete with them."""
    name = f"{size.name}, 2 ranks of DDP"
    database = options.folder / f"two-ranks-{size.steps}.duckdb"
    with aggregator(database) as server:
        run = Run(options=options, server=server, size=size)
        idle_s = server.cpu_s()
        figures = _compared(run, name, torchrun(2), run.rounds(4))
        aggregator_s = server.cpu_s() - idle_s
    events, shipper_s = _shipped(database)
    million = max(1, events) / 1e6
    return [
        *figures,
        Figure(what=f"{name}: shipper's CPU for a million events", value=shipper_s / million, unit="s"),
        Figure(what=f"{name}: aggregator's CPU for a million events", value=aggregator_s / million, unit="s"),
    ]


def _shipped(database: Path) -> tuple[int, float]:
    """Events stored and CPU seconds of all their shippers, as rankmem itself has recorded it."""
    with duckdb.connect(str(database), read_only=True) as connection:
        events = connection.sql("SELECT count(*) FROM memory_event").fetchall()[0][0]
        cost = connection.sql(
            "SELECT coalesce(sum(cpu_ns), 0) FROM "
            "(SELECT session_id, max(shipper_cpu_ns) AS cpu_ns FROM self_cost GROUP BY session_id)"
        ).fetchall()[0][0]
    return int(events), int(cost) / 1e9


def _under_profiler(run: Run) -> float:
    """Mean seconds a step under torch.profiler, each cycle exported before the next."""
    folder = Path(tempfile.mkdtemp(dir=run.options.folder))
    steps = run.plain(extra=["--profile-folder", str(folder)])
    shutil.rmtree(folder)
    return statistics.mean(steps.wall_s)


def _under_memray(run: Run) -> float:
    """Mean seconds a step under memray, which writes its recording as it goes."""
    recording = run.options.folder / "memray.bin"
    steps = run.plain(["-m", "memray", "run", "--native", "--quiet", "--output", str(recording)])
    recording.unlink()
    return statistics.mean(steps.wall_s)


def _steps(result: dict[str, Any]) -> Steps:
    return Steps(wall_s=list(result["steps_s"]), cpu_s=list(result["cpu_s"]))


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * value for value in seconds]


def _say(name: str, text: str) -> None:
    say(f"{name}, {text}")


if __name__ == "__main__":
    main("step_time", "step time with and without rankmem", measure)
