"""The large questions of a lake through worker processes: what a second one gains, what a death costs.

Stage: part of the benchmark ``lake``. In: a lake; out: figures. CPU is that of this process and all workers.
A worker has one thread here, so that two of them have twice the cores of one.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from harness import Figure, say

from rankmem_aggregator.lake.engines import Processes
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.queries import LakeQueries
from rankmem_aggregator.lake.scattered import ScatteredQueries, parts_of
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import query_text

ROUNDS: Final = 3
LARGE_S: Final = 5
"""A question that takes one worker so long is to gain from a second."""
WARM_TASKS: Final = 10
KILLED_AT: Final = 0.4
"""Of the time that the question takes."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Ask = Callable[[Queries], pa.Table]


@dataclass(frozen=True, slots=True)
class _Took:
    wall_s: float
    cpu_s: float


def figures(lake: str, name: str, session: str, questions: dict[str, Ask], job_peak: str) -> list[Figure]:
    """All figures.

    Args:
        lake: its address.
        name: of the session, for the figures.
        session: its full id.
        questions: what is asked.
        job_peak: the one of them that is asked by slices of time, also while a worker is killed.
    """
    took = {workers: _asked(lake, workers, questions) for workers in (1, 2)}
    found = []
    for what in questions:
        one, two = took[1][what], took[2][what]
        is_large = one.wall_s > LARGE_S
        walls = f"{one.wall_s:.2f} s and {two.wall_s:.2f} s"
        found.append(
            Figure(
                what=f"{name}: {what}: wall, 1 worker / 2",
                value=one.wall_s / two.wall_s,
                at_least=1.7 if is_large else None,
                note=walls,
            )
        )
        found.append(
            Figure(
                what=f"{name}: {what}: CPU, 2 workers / 1",
                value=two.cpu_s / one.cpu_s,
                at_most=1.1 if is_large else None,
                note=f"{one.cpu_s:.2f} s and {two.cpu_s:.2f} s",
            )
        )
    with LakeQueries(lake) as alone:
        asked = [_measured(lambda: questions[job_peak](alone), ()) for _ in range(ROUNDS + 1)][1:]
    found.append(
        Figure(
            what=f"{name}: {job_peak}: CPU by slices of time in a worker / one process",
            value=took[1][job_peak].cpu_s / statistics.median(t.cpu_s for t in asked),
            at_most=1.5,
        )
    )
    return [*found, *_tasks(lake, name, session), *_killed(lake, name, questions[job_peak], job_peak)]


def _asked(lake: str, workers: int, questions: dict[str, Ask]) -> dict[str, _Took]:
    found = {}
    with ScatteredQueries(lake, f"processes:{workers}", worth_bytes=0) as queries:
        engine = _of_one_thread(queries)
        for what, ask in questions.items():
            ask(queries)
            pids = engine.pids
            rounds = [_measured(lambda ask=ask: ask(queries), pids) for _ in range(ROUNDS)]  # type: ignore[misc]
            found[what] = _Took(
                *map(statistics.median, zip(*((t.wall_s, t.cpu_s) for t in rounds), strict=True))
            )
            say(f"{workers} workers: {what}: {found[what].wall_s:.2f} s, {found[what].cpu_s:.2f} CPU s")
    return found


def _of_one_thread(queries: ScatteredQueries) -> Processes:
    engine = queries.engine
    assert isinstance(engine, Processes)
    engine._threads = 1
    return engine


def _measured(ask: Callable[[], pa.Table], pids: tuple[int, ...] | list[int]) -> _Took:
    began_s, cpu_s = time.perf_counter(), _cpu_s(pids)
    ask()
    return _Took(time.perf_counter() - began_s, _cpu_s(pids) - cpu_s)


def _cpu_s(pids: tuple[int, ...] | list[int]) -> float:
    """Of this process and of these."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    return time.process_time() + ticks / _TICKS


def _tasks(lake: str, name: str, session: str) -> list[Figure]:
    """A small task, the peaks of one host's ranks: in a new process, and in one that has done it before."""
    with LakeQueries(lake) as queries:
        version = queries.version
        rows = queries.sql(
            "SELECT rank, host_uid FROM rank_info WHERE session_id = $s ORDER BY rank, attempt",
            {"s": session},
        ).to_pylist()
    part = parts_of(rows, session, len({row["host_uid"] for row in rows}))[-1]
    task = Task(
        address=lake,
        version=version,
        part=part,
        sql=query_text("peak"),
        parameters={"session": session, "attempt": None, "rank": None},
    )
    before = _ended_cpu_s()
    engine = Processes(1)
    list(engine.run([task]))
    pids = engine.pids
    own = _cpu_s(pids) - time.process_time()
    list(engine.run([task] * WARM_TASKS))
    warm = (_cpu_s(pids) - time.process_time() - own) / WARM_TASKS
    engine.close()
    cold = _ended_cpu_s() - before - warm * WARM_TASKS
    return [
        Figure(what=f"{name}: cold task, CPU", value=cold, unit="s", at_most=0.35),
        Figure(what=f"{name}: warm task, CPU", value=warm, unit="s", at_most=0.05),
    ]


def _ended_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _killed(lake: str, name: str, ask: Ask, what: str) -> list[Figure]:
    """The same question while a worker is killed; everything from the workers' start on."""
    answers, cpu, wall_s = [], [], 0.0
    for is_killed in (False, True):
        began_s, before = time.perf_counter(), _ended_cpu_s() + time.process_time()
        with ScatteredQueries(lake, "processes:2", worth_bytes=0) as queries:
            engine = _of_one_thread(queries)
            timer = threading.Timer(
                KILLED_AT * wall_s, lambda engine=engine: os.kill(engine.pids[0], signal.SIGKILL)
            )  # type: ignore[misc]
            if is_killed:
                timer.start()
            answers.append(ask(queries))
            timer.cancel()
        wall_s = time.perf_counter() - began_s
        cpu.append(_ended_cpu_s() + time.process_time() - before)
    return [
        Figure(
            what=f"{name}: {what}: CPU while a worker is killed / undisturbed",
            value=cpu[1] / cpu[0],
            at_most=1.3,
        ),
        Figure(
            what=f"{name}: {what}: answers that differ when a worker is killed",
            value=int(not answers[0].equals(answers[1], check_metadata=True)),
            at_most=0,
            must=True,
        ),
    ]
