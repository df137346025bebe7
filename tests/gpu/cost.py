"""Stage ``cost``: what recording costs a model of > 100 M parameters, and one that is bound by launches."""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpu.checks import Check, Found, Place, figure
from gpu.recorded import RANKMEM, record, run, training

TURNS: Final = Path(__file__).with_name("turns.py")
RATIO_MAX: Final = 1.01
SAMPLES_MIN: Final = 30
DRAWS: Final = 2000
WARM_STEPS: Final = 5
BLOCK_STEPS: Final = 10
COUNT: Final = "SELECT count(*) AS events FROM memory_event"


def _in_turn(workload: str, *arguments: str, rounds: int) -> Callable[[Place], Iterator[Found]]:
    def look(place: Place) -> Iterator[Found]:
        out = place.folder / "turns.json"
        command = [*RANKMEM, "run", "--db", str(place.folder / "turns.duckdb"), "--no-diagnose", "--"]
        command += [sys.executable, str(TURNS), workload, "--device", place.device, "--out", str(out)]
        few = ["--rounds", "4", "--other-rounds", "2", "--steps", "2"]
        command += [*arguments, *(["--rounds", str(rounds)] if place.on_gpu else few)]
        done = run(command)
        if not out.exists():
            raise RuntimeError(f"{workload} ended with {done.returncode}: {done.stderr[-3000:]}")
        for name, samples in json.loads(out.read_text()).items():
            yield from judge_ratio(
                f"{name}, in one process",
                samples["on"],
                samples["off"],
                at_most=RATIO_MAX if name == "recorded" and place.on_gpu else None,
            )

    return look


def _processes(
    workload: str, *arguments: str, rounds: int, env: Mapping[str, str] | None = None
) -> Callable[[Place], Iterator[Found]]:
    """Processes without and with rankmem in turn: hooks and all; and the memory that it adds."""

    def look(place: Place) -> Iterator[Found]:
        taken: dict[str, list[float]] = {"off": [], "on": []}
        told: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
        drains: list[float] = []
        events = steps = 0
        for number in range(rounds if place.on_gpu else 1):
            for which in ("off", "on") if number % 2 == 0 else ("on", "off"):
                if which == "off":
                    said = _plain(place, workload, *arguments)
                else:
                    recording = record(place, workload, f"on-{number}", *arguments, env=env)
                    said = recording.told
                    drains.append(time.time() - said["ended_s"])
                    with recording.queries() as queries:
                        events += queries.sql(COUNT).to_pylist()[0]["events"]
                    steps += len(said["steps_s"])
                told[which].append(said)
                taken[which] += blocks_of(said["steps_s"])
        bound = RATIO_MAX if place.on_gpu else None
        yield from judge_ratio("recorded, processes in turn", taken["on"], taken["off"], at_most=bound)
        added_s = statistics.median(taken["on"]) - statistics.median(taken["off"])
        yield figure("events a step", round(events / steps, 1))
        yield figure("events a second", round(events / steps / statistics.median(taken["on"])))
        yield figure("us an event", round(1e6 * added_s / (events / steps), 3))
        yield figure("end of the training to end of rankmem run, s", [round(each, 2) for each in drains])
        yield from judge_memory(told["on"], told["off"])

    return look


def _plain(place: Place, workload: str, *arguments: str) -> dict[str, Any]:
    out = place.folder / "plain.json"
    done = run([sys.executable, *training(place, workload, out, *arguments)])
    if done.returncode:
        raise RuntimeError(f"{workload} ended with {done.returncode}: {done.stderr[-3000:]}")
    said: dict[str, Any] = json.loads(out.read_text())
    return said


def blocks_of(steps_s: Sequence[float], warm: int = WARM_STEPS, size: int = BLOCK_STEPS) -> list[float]:
    """Seconds of a step in each whole block of steps after the warm-up; all in one where they are few."""
    kept = steps_s[warm:] if len(steps_s) > warm + size else steps_s[-1:]
    whole = [kept[at : at + size] for at in range(0, len(kept) - size + 1, size)] or [kept]
    return [statistics.mean(block) for block in whole]


def judge_ratio(
    what: str, on: Sequence[float], off: Sequence[float], *, at_most: float | None
) -> Iterator[Found]:
    """The ratio of the medians with its 95 % interval; judged where ``at_most`` is given."""
    low, high = interval_of(on, off)
    ratio = statistics.median(on) / statistics.median(off)
    measured = (
        f"{ratio:.4f} (95 %: {low:.4f} to {high:.4f}), {len(on)} and {len(off)} samples, "
        f"{1e3 * statistics.median(on):.3f} and {1e3 * statistics.median(off):.3f} ms"
    )
    if at_most is None:
        yield figure(what, measured)
        return
    yield Found(what=what, ok=ratio <= at_most, measured=measured, expected=f"<= {at_most:g}")
    yield figure(f"{what}: can be told apart", not low <= 1 <= high)
    yield Found(
        what=f"{what}: samples", ok=min(len(on), len(off)) >= SAMPLES_MIN, measured=len(on),
        expected=f">= {SAMPLES_MIN}",
    )  # fmt: skip


def interval_of(on: Sequence[float], off: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of ratios of medians of samples drawn from these, with replacement."""
    chance = random.Random(1)
    ratios = sorted(
        statistics.median(chance.choices(on, k=len(on))) / statistics.median(chance.choices(off, k=len(off)))
        for _ in range(DRAWS)
    )
    return ratios[int(0.025 * DRAWS)], ratios[int(0.975 * DRAWS) - 1]


def judge_memory(on: Sequence[dict[str, Any]], off: Sequence[dict[str, Any]]) -> Iterator[Found]:
    """What recording adds to the process: host memory as a figure, device memory none."""
    host = [statistics.median(each["anonymous_bytes"] for each in some) for some in (on, off)]
    yield figure("host memory added, MiB", round((host[0] - host[1]) / 2**20, 1))
    if not all("driver" in each for each in (*on, *off)):
        return
    held = [[each["driver"]["own"] for each in some] for some in (on, off)]
    if None in (*held[0], *held[1]):
        yield figure("device memory with and without", f"the driver does not say: {held}")
        return
    added = statistics.median(held[0]) - statistics.median(held[1])
    yield Found(
        what="device memory added, bytes", ok=added == 0, measured=added, expected="0",
    )  # fmt: skip
    peaks = [{each["stats"]["reserved_bytes.all.peak"] for each in some} for some in (on, off)]
    yield Found(what="reserved peak the same", ok=peaks[0] == peaks[1], measured=[sorted(p) for p in peaks])


CHECKS: Final = (
    Check(name="turns_chain", alone=True, look=_in_turn("chain", "--steps", "20", rounds=60), limit_s=100),
    Check(name="turns_gpt", alone=True, look=_in_turn("gpt", "--steps", "5", rounds=40), limit_s=140),
    Check(
        name="processes_chain", alone=True, look=_processes("chain", "--steps", "165", rounds=4), limit_s=150
    ),
    Check(
        name="steady_chain",
        alone=True,
        look=_processes("chain", "--steps", "165", rounds=4, env={"RANKMEM_STEADY": "10"}),
        limit_s=150,
    ),
    Check(name="processes_gpt", alone=True, look=_processes("gpt", "--steps", "115", rounds=4), limit_s=240),
)
