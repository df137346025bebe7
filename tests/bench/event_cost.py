"""What recording costs the trainer: time of an event, time to start, resident memory.

The time of an event is taken in a tight loop of ``torch.empty``, where caches are warm and each
pair of events has a call of its own; step_time takes it in a training, where events compete with the
model for the caches. Recording is switched in turn in one process; there is no shipper, whose work is on
another core. Start and memory are taken from processes without and with the agent in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import duckdb
from harness import Figure, Options, alternate, main, of_samples, say
from processes import aggregator, environment, recording_environment, train, wait_until_quiet

LOOP_BYTES: Final = 4096  # a small tensor: what malloc hands out without asking the kernel
EVENTS_A_TURN: Final = 2  # an alloc and a free
FRAMES: Final = 40
SPOOL_BYTES: Final = 2 * 2**30
RSS_STEPS: Final = 30
MIB: Final = 2**20


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    return [*tight_loop(options), *evidence(options), *started(options), *resident(options)]


def tight_loop(options: Options) -> list[Figure]:
    """Nanoseconds an event in a loop that does nothing but allocate and free."""
    import torch

    from rankmem_agent.tap.build import build_tap
    from rankmem_agent.tap.library import Stat, Tap, What

    torch.set_num_threads(1)
    turns = 20_000 if options.quick else 50_000
    rounds = 11 if options.quick else 41
    off_samples = alternate({"before": lambda: _loop_ns(turns)}, rounds)["before"]
    tap = Tap(build_tap())
    tap.open(Path(tempfile.mkdtemp(dir=options.memory_folder)), SPOOL_BYTES)
    tap.attach_cpu()
    tap.attach_calls()

    def with_bits(bits: What) -> float:
        tap.enable(bits)
        loop_ns = _loop_ns(turns)
        tap.enable(bits, on=False)
        return loop_ns

    events, calls = What.CPU_EVENTS, What.CPU_EVENTS | What.CALLS
    samples = alternate(
        {
            "off": lambda: with_bits(What(0)),
            "events": lambda: with_bits(events),
            "calls": lambda: with_bits(calls),
            "stacks": lambda: with_bits(calls | What.STACKS),
        },
        rounds,
    )
    dropped, records = tap.stat(Stat.DROPPED), tap.stat(Stat.NEXT_SEQ)
    tap.close()
    off = samples["off"]
    return [
        of_samples("tight loop: torch.empty and its free, no agent", off_samples, "ns"),
        of_samples("tight loop: the same, agent attached, recording off", off, "ns"),
        _added("tight loop: an event", samples["events"], off, at_most=500),
        _added("tight loop: an event, with its share of a call", samples["calls"], off, at_most=500),
        _added(
            "tight loop: an event, with its share of a call and a stack",
            samples["stacks"],
            off,
            note=f"every call allocates here; {dropped} of {records} records dropped",
        ),
    ]


def evidence(options: Options) -> list[Figure]:
    """What a block's evidence adds, by a process of its own: that tap is built otherwise."""
    command = [sys.executable, str(Path(__file__).with_name("evidence_probe.py")), str(FRAMES)]
    folder = tempfile.mkdtemp(dir=options.memory_folder)
    probe = [*command, folder, "11" if options.quick else "61"]
    done = subprocess.run(probe, capture_output=True, text=True, check=True)
    said = f"in {FRAMES} frames, among them 10 calls of modules"
    added: dict[str, list[float]] = json.loads(done.stdout)
    return [
        of_samples(f"evidence of a block {said}", added["block"], "ns", at_most=90),
        of_samples("native operator of a block that has no call", added["native_operator"], "ns"),
    ]


def started(options: Options) -> list[Figure]:
    """From the start of the interpreter until ``import torch`` is done, with and without the agent."""
    database = options.folder / "start.duckdb"
    with aggregator(database) as server:
        spools = Path(tempfile.mkdtemp(dir=options.memory_folder))
        env = recording_environment(server.address, spools)

        def with_agent() -> float:
            started_s = _start_s(["-m", "rankmem_agent"], env)
            wait_until_quiet(spools)  # a shipper at work would slow the next start
            return started_s

        with_agent()  # builds the tap if need be
        samples = alternate(
            {"without": lambda: _start_s([], environment()), "with": with_agent},
            3 if options.quick else 15,
            partial(_say, "start"),
        )
    added = [w - wo for w, wo in zip(samples["with"], samples["without"], strict=True)]
    return [
        of_samples("import torch", samples["without"], "s"),
        of_samples("import and start of the agent on top (tap cached)", added, "s", at_most=0.3),
        of_samples("the same by the agent's own clock (self_cost.attach_ns)", _attach_s(database), "s"),
    ]


def resident(options: Options) -> list[Figure]:
    """Resident memory of the trainer after some steps, the spool's mappings left out."""
    arguments = ["--steps", str(RSS_STEPS), "--batch", "4"]
    with aggregator(options.folder / "resident.duckdb") as server:
        spools = Path(tempfile.mkdtemp(dir=options.memory_folder))
        env = recording_environment(server.address, spools)

        def resident_bytes(before: list[str], env: dict[str, str]) -> float:
            return float(train(before, arguments, options.folder, env)["resident_bytes"])

        samples = alternate(
            {
                "without": lambda: resident_bytes([], environment()),
                "with": lambda: resident_bytes(["-m", "rankmem_agent"], env),
            },
            3 if options.quick else 9,
            partial(_say, "resident"),
        )
        wait_until_quiet(spools)
    added = [(w - wo) / MIB for w, wo in zip(samples["with"], samples["without"], strict=True)]
    return [
        of_samples(
            "trainer's resident memory without the agent", [s / MIB for s in samples["without"]], "MiB"
        ),
        of_samples("resident memory added, besides the spool", added, "MiB", at_most=20),
    ]


def _loop_ns(turns: int) -> float:
    """Nanoseconds a turn: one tensor made and freed."""
    import torch

    began = time.perf_counter_ns()
    for _ in range(turns):
        torch.empty(LOOP_BYTES, dtype=torch.uint8)
    return (time.perf_counter_ns() - began) / turns


def _added(what: str, on: list[float], off: list[float], *, note: str = "", **budget: float) -> Figure:
    """What an event adds: the differences within each round, over the events of a turn."""
    each = [(a - b) / EVENTS_A_TURN for a, b in zip(on, off, strict=True)]
    return of_samples(what, each, "ns", note=note, **budget)


def _start_s(before: list[str], env: dict[str, str]) -> float:
    """Seconds from starting python until torch was imported, in the child's own words."""
    began_ns = time.monotonic_ns()
    command = [sys.executable, *before, str(Path(__file__).with_name("start_probe.py"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return (int(done.stdout.split()[0]) - began_ns) / 1e9


def _attach_s(database: Path) -> list[float]:
    """What each session's agent says it took."""
    with duckdb.connect(str(database), read_only=True) as connection:
        rows = connection.sql("SELECT max(attach_ns) / 1e9 FROM self_cost GROUP BY session_id").fetchall()
    return [float(row[0]) for row in rows]


def _say(name: str, text: str) -> None:
    say(f"{name}, {text}")


if __name__ == "__main__":
    main("event_cost", "what recording costs the trainer", measure)
