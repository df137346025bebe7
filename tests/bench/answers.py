"""How long each answer takes over 100 million events of 64 ranks: every verb and each of its groupings.

Asked as the command line asks: through the Python client, on a file. The database is the synthetic one, of
steady training, with blocks, categories, steps and stacks; its summaries are told the way the aggregator
tells them. Wall time is what a user waits; CPU time of all threads stands in the note, since it
hardly moves with what else the machine does. Each is asked once before the rounds, which fills the cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from harness import Figure, Options, main, of_samples, say
from synthetic_database import RANKS, SESSION, STEADY, fill, fill_blocks, fill_progress

from rankmem_aggregator import connect
from rankmem_aggregator.config import GIB, AggregatorConfig
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import install_views
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.store import open_store
from rankmem_aggregator.summaries.schedule import Summaries

EVENTS: Final = 100_000_000
QUICK_EVENTS: Final = 5_000_000
MEMORY_BYTES: Final = 6 * GIB  # of a laptop
ROUNDS: Final = 3
BUDGET_S: Final = 1.0
JOB_BUDGET_S: Final = 2.0
RANK: Final = 3
INSTANT: Final = """
SELECT requested_peak_ns FROM memory_bucket
WHERE rank = $rank AND seq_first > (SELECT max(seq_last) // 2 FROM memory_bucket)
ORDER BY seq_first, requested_peak_ns LIMIT 1 OFFSET 16
"""
"""The instant of the highest total of a bucket of a rank, in the middle: amid a step."""

Question = Callable[[Queries, int], pa.Table]


def questions() -> dict[str, Question]:
    """What is asked, by the words of the command line; ``at``: an instant within a step, in the middle."""
    asked: dict[str, Question] = {
        "sessions": lambda q, at: q.sessions(),
        "hosts": lambda q, at: q.hosts(SESSION),
        "ranks": lambda q, at: q.ranks(SESSION),
        "peak": lambda q, at: q.peak(SESSION),
    }
    for group in ("host", "tp", "pp", "stream", "component", "category", "phase"):
        asked[f"peak --by {group}"] = lambda q, at, by=group: q.peak_by(SESSION, by=by)
    for group in ("operator", "module", "line", "category", "phase", "step", "rank"):
        asked[f"ops --by {group}"] = lambda q, at, by=group: q.ops(SESSION, by=by)
    for group in ("operator", "category"):
        asked[f"ops --by {group} --order total"] = lambda q, at, by=group: q.ops(SESSION, by=by, at="total")
        asked[f"ops --by {group} --at TIME"] = lambda q, at, by=group: q.ops(SESSION, by=by, at=at)
    asked |= {
        "live --rank": lambda q, at: q.live(RANK, SESSION),
        "live --rank --at TIME": lambda q, at: q.live(RANK, SESSION, at=at),
        "held at an instant, all ranks": lambda q, at: q.held_at(at, SESSION),
        "job-peak": lambda q, at: q.job_peak(SESSION),
        "timeline --rank": lambda q, at: q.timeline(SESSION, rank=RANK),
        "timeline, the whole job": lambda q, at: q.timeline(SESSION, by="job"),
        "timeline --by category, all ranks": lambda q, at: q.timeline(SESSION, by="category", rank="all"),
    }
    for group in ("category", "stream", "component", "phase"):
        asked[f"timeline --by {group} --rank"] = lambda q, at, by=group: q.timeline(SESSION, by=by, rank=RANK)
    asked |= {
        "modules": lambda q, at: q.modules(SESSION),
        "modules --rank": lambda q, at: q.modules(SESSION, rank=RANK),
        "weights": lambda q, at: q.weights(SESSION),
        "oom": lambda q, at: q.oom(SESSION),
        "steps": lambda q, at: q.steps(SESSION),
        "steps --rank": lambda q, at: q.steps(SESSION, rank=RANK),
    }
    for macro in ("operator_at_peak", "line_at_peak", "operator_total"):
        asked[f"SQL: {macro}"] = lambda q, at, macro=macro: q.sql(
            f"FROM {macro}($session)", {"session": SESSION}
        )
    return asked


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    path = options.folder / "answers.duckdb"
    events = _made(path, QUICK_EVENTS if options.quick else EVENTS)
    told = _covered(path, events)
    figures = [told]
    with connect(path) as queries:
        at = int(queries.sql(INSTANT, {"rank": RANK}).column(0)[0].as_py())
        for name, question in questions().items():
            figures.append(_figure(name, queries, question, at))
    return figures


def _made(path: Path, events: int) -> int:
    config = {"memory_limit": f"{MEMORY_BYTES}B", "temp_directory": str(path.parent)}
    with duckdb.connect(str(path), config=config) as connection:
        schema.prepare(connection)
        install_views(connection)
        made = fill(connection, STEADY, events)
        fill_blocks(connection, STEADY, made)
        fill_progress(connection)
    say(f"{made:,} events of {RANKS} ranks, {path.stat().st_size / made:.1f} bytes each")
    return made


def _covered(path: Path, events: int) -> Figure:
    """Tells the summaries, as the aggregator does while no batch waits."""
    store = open_store(AggregatorConfig(database_path=path, memory_limit_bytes=MEMORY_BYTES))
    began_s, before = time.process_time(), path.stat().st_size
    summaries = Summaries(store)
    while summaries.advance():
        pass
    cpu_s = time.process_time() - began_s
    store.close()
    more = (path.stat().st_size - before) / events
    note = f"{summaries.num_passes} passes; {more:.2f} bytes an event on disk"
    return Figure(what="summaries: CPU for a million events", value=cpu_s / events * 1e6, unit="s", note=note)


def _figure(name: str, queries: Queries, question: Question, at: int) -> Figure:
    wall: list[float] = []
    cpu: list[float] = []
    rows = 0
    for _ in range(ROUNDS + 1):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        rows = question(queries, at).num_rows
        wall.append(time.perf_counter() - wall_s)
        cpu.append(time.process_time() - cpu_s)
    say(f"{name}: {min(wall[1:]):.3f} s, {rows} rows")
    note = f"CPU {statistics.median(cpu[1:]):.3f} s, {rows:,} rows"
    at_most = JOB_BUDGET_S if name == "job-peak" else BUDGET_S
    return of_samples(name, wall[1:], "s", note=note, at_most=at_most)


if __name__ == "__main__":
    main("answers", f"every answer over {EVENTS // 1_000_000} M events of {RANKS} ranks", measure)
