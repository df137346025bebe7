"""What recording costs programs of small operators, beside the other tools, for ``step_time``.

Each variant is a process of its own, in turn: without anything; with an observer of operators that does
nothing (what torch itself asks for being watched); with rankmem at each level of detail; under torch.profiler
and memray. Figures are ratios of the mean step, in CPU time and in wall time, to the plain one's.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Final

from harness import Figure, Options, alternate, of_ratio, of_samples, say
from processes import Aggregator, environment, recording_environment, train, wait_until_quiet
from train_gpt import TAP_ALL

from rankmem_agent.config import AgentConfig
from rankmem_agent.tap.build import find_compiler, torch_include_dir

SCRIPT: Final = Path(__file__).with_name("train_small.py")
OBSERVER: Final = Path(__file__).with_name("empty_observer.cpp")
PROGRAMS: Final = {"mlp": 3000, "rl": 1000, "lstm": 1000, "generate": 300}
"""Steps of each: two seconds."""
LARGER: Final = {"deep": 400, "gpt": 200}
"""Likewise, only switched in one process: recording weighs less there than processes vary."""
LARGER_CHUNK_STEPS: Final = 4
OPTIMIZED: Final = ("mlp", "deep", "gpt")
"""Whose steps an optimizer ends."""
QUICK: Final = 10
"""As many times fewer with ``--quick``."""
ROUNDS: Final = 5
DETAILS: Final = ("full", "operators", "events", "auto")
"""Of ``RANKMEM_DETAIL``."""
STEADY: Final = "steady"
"""Full detail with ``RANKMEM_STEADY=auto``, audits included; the program says where its steps end."""
SWITCHED_TIMES: Final = 2
"""Times the steps of a process, where recording is switched in one."""
_EVENTS_BIT: Final = 1
STEADY_AT_MOST: Final = {"mlp": 1.05, "rl": 1.09, "lstm": 1.05, "deep": 1.05, "gpt": 1.05}
FULL_AT_MOST: Final = 1.40
"""CPU time with everything recorded, for the programs without a KV cache."""
PLAIN: Final = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program under these options."""

    name: str
    options: Options
    server: Aggregator
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    """CPU seconds of a step, by variant."""
    thread_s: dict[str, list[float]] = field(default_factory=dict)
    """Likewise of the thread that trains alone, without the one that prepares the log's pages."""

    def run(self, variant: str, before: tuple[str, ...] = (), extra: tuple[str, ...] = ()) -> float:
        """Runs it without rankmem; wall seconds of a step."""
        return self._taken(variant, before, extra, environment())

    def recorded(self, variant: str, detail: str) -> float:
        """Runs it with rankmem; returns when all is stored, so that nothing runs on."""
        spools = Path(tempfile.mkdtemp(dir=self.options.memory_folder))
        env = recording_environment(self.server.address, spools)
        env |= {"RANKMEM_STEADY": "auto"} if detail == STEADY else {"RANKMEM_DETAIL": detail}
        extra = ("--ends-steps",) if detail == STEADY and self.name not in OPTIMIZED else ()
        wall_s = self._taken(variant, ("-m", "rankmem_agent"), extra, env)
        wait_until_quiet(spools)
        shutil.rmtree(spools)
        return wall_s

    def switched(
        self,
        variant: str,
        bits: int,
        extra: tuple[str, ...],
        env: dict[str, str],
        at_most: float | None = None,
    ) -> Figure:
        """CPU time of the thread that trains, recording on and off in turn in one process."""
        spools = Path(tempfile.mkdtemp(dir=self.options.memory_folder))
        env = recording_environment(self.server.address, spools) | env
        steps = SWITCHED_TIMES * (PROGRAMS | LARGER)[self.name] // (QUICK if self.options.quick else 1)
        arguments = [self.name, "--steps", str(steps), "--switch", str(bits), *extra]
        if self.name in LARGER:
            arguments += ["--chunk-steps", str(LARGER_CHUNK_STEPS)]
        result = train(("-m", "rankmem_agent"), arguments, self.options.folder, env, script=SCRIPT)
        wait_until_quiet(spools)
        shutil.rmtree(spools)
        times = list(zip(result["thread_s"], result["on"], strict=True))
        on, off = ([each for each, flag in times if flag == which] for which in (True, False))
        count = min(len(on), len(off))
        what = f"{self.name}: {variant}, on / off in one process, CPU time of its own thread"
        return of_ratio(what, on[:count], off[:count], at_most=at_most)

    def profiled(self, variant: str) -> float:
        """Runs it under torch.profiler, each cycle exported before the next."""
        folder = tempfile.mkdtemp(dir=self.options.folder)
        wall_s = self.run(variant, extra=("--profile-folder", folder))
        shutil.rmtree(folder)
        return wall_s

    def under_memray(self, variant: str) -> float:
        """Runs it under memray, which writes its recording as it goes."""
        recording = self.options.folder / "memray.bin"
        wall_s = self.run(variant, ("-m", "memray", "run", "--native", "--quiet", "--output", str(recording)))
        recording.unlink()
        return wall_s

    def _taken(
        self, variant: str, before: tuple[str, ...], extra: tuple[str, ...], env: dict[str, str]
    ) -> float:
        steps = PROGRAMS[self.name] // (QUICK if self.options.quick else 1)
        arguments = [self.name, "--steps", str(steps), *extra]
        result = train(before, arguments, self.options.folder, env, script=SCRIPT)
        self.cpu_s.setdefault(variant, []).append(result["cpu_s"])
        self.thread_s.setdefault(variant, []).append(result["thread_s"])
        return float(result["wall_s"])


def small_operators(options: Options, server: Aggregator) -> list[Figure]:
    """The figures of all programs."""
    observer = _observer(options.folder)
    figures: list[Figure] = []
    for name in PROGRAMS:
        program = Program(name=name, options=options, server=server)
        figures += in_one_process(program)
        figures += _compared(program, _variants(program, observer))
    for name in LARGER:
        figures += in_one_process(Program(name=name, options=options, server=server))
    return figures


def in_one_process(program: Program) -> list[Figure]:
    """Everything recorded, and steady, against the same process with recording off."""
    ends = () if program.name in OPTIMIZED else ("--ends-steps",)
    steady = {"RANKMEM_STEADY": "auto"}
    budget = STEADY_AT_MOST.get(program.name)
    return [
        program.switched("rankmem, full", TAP_ALL, (), {}),
        program.switched("rankmem, steady", _EVENTS_BIT, ends, steady, budget),
    ]


def _variants(program: Program, observer: Path | None) -> dict[str, Callable[[], float]]:
    """What takes turns; what this machine or this rankmem does not have is left out, and said."""
    variants: dict[str, Callable[[], float]] = {PLAIN: partial(program.run, PLAIN)}
    if observer is not None:
        name = "an observer that does nothing"
        variants[name] = partial(program.run, name, extra=("--observer", str(observer)))
    for detail in (*DETAILS, STEADY):
        if detail == DETAILS[0] or _has_detail():
            name = f"rankmem, {detail}"
            variants[name] = partial(program.recorded, name, detail)
        else:
            say(f"this rankmem has no RANKMEM_DETAIL: {detail} not run")
    name = "torch.profiler(profile_memory, with_stack), exported cycles"
    variants[name] = partial(program.profiled, name)
    if importlib.util.find_spec("memray") is not None:
        name = "memray run --native"
        variants[name] = partial(program.under_memray, name)
    else:
        say("memray is not installed: not run (pip install memray)")
    return variants


def _compared(program: Program, variants: dict[str, Callable[[], float]]) -> list[Figure]:
    rounds = 2 if program.options.quick else ROUNDS
    wall_s = alternate(variants, rounds, lambda text: say(f"{program.name}, {text}"))
    plain_us = [1e6 * each for each in program.cpu_s[PLAIN]]
    figures = [of_samples(f"{program.name}: CPU time of a plain step", plain_us, "us")]
    for variant in list(variants)[1:]:
        bounds = {f"rankmem, {STEADY}": STEADY_AT_MOST.get(program.name)}
        bounds[f"rankmem, {DETAILS[0]}"] = FULL_AT_MOST if program.name != "generate" else None
        budget = {"at_most": bounds[variant]} if bounds.get(variant) else {}
        cpu = (program.cpu_s[variant], program.cpu_s[PLAIN])
        figures.append(of_ratio(f"{program.name}: {variant} / plain, CPU time", *cpu, **budget))
        own = (program.thread_s[variant], program.thread_s[PLAIN])
        figures.append(
            of_ratio(f"{program.name}: {variant} / plain, CPU time of the thread that trains", *own)
        )
        figures.append(of_ratio(f"{program.name}: {variant} / plain", wall_s[variant], wall_s[PLAIN]))
    return figures


def _has_detail() -> bool:
    """Whether this rankmem can be told how much to record."""
    return any(each.name == "detail" for each in fields(AgentConfig))


def _observer(folder: Path) -> Path | None:
    """The library of empty_observer.cpp; None without a compiler."""
    compiler, include = find_compiler(), torch_include_dir()
    if compiler is None:
        say("no C++ compiler: the empty observer is not run")
        return None
    libraries = include.parent / "lib"
    path = folder / "observer.so"
    command = [compiler, "-std=c++20", "-O2", "-fPIC", "-shared", f"-isystem{include}", str(OBSERVER)]
    command += ["-o", str(path), *(str(libraries / name) for name in ("libc10.so", "libtorch_cpu.so"))]
    subprocess.run([*command, f"-Wl,-rpath,{libraries}"], check=True)
    return path
