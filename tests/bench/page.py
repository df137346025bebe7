"""The web page at size: every route over random ranges, the browser, memory_level, and viewers beside ingest.

Three databases: 100 M events of 64 ranks and 21 M of 1,024, both with blocks, categories, steps and stacks;
and an hour of 1,024 ranks as buckets alone, as 1.03 thousand million events leave them. Answers are measured
without a browser and by CPU of all threads, which hardly moves with what else the machine does; beside it
stands the named question that answers the like today, asked in the same run. RANKMEM_BENCH_DATABASES names a
folder in which the databases are kept for the next run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import duckdb
from harness import Figure, Options, alternate, main, of_ratio, of_samples, say
from ingest import SESSION as INGESTED
from ingest import prepared, send_paired
from page_browsing import browser_figures
from page_routes import CPU_MS_MAX, Scale, route_figures
from synthetic_database import SESSION, STEADY, fill, fill_blocks, fill_buckets, fill_progress

from rankmem_aggregator import connect
from rankmem_aggregator.config import GIB, AggregatorConfig
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import install_views
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.store import open_store
from rankmem_aggregator.summaries.schedule import Summaries

MEMORY_BYTES: Final = 4 * GIB
RANGES: Final = 200
QUICK_RANGES: Final = 20
INTERACTIONS: Final = 500
QUICK_INTERACTIONS: Final = 50
VIEWERS: Final = 50
LEVEL_CPU_S_MAX: Final = 0.02
"""A million events."""
LEVEL_BYTES_MAX: Final = 0.1
"""An event."""
_BUCKETS: Final = "SELECT count(*) FROM memory_bucket"
_CELLS: Final = "SELECT count(*) FROM memory_level"
_FORMER_PEAKS: Final = """
SELECT attempt, rank, device, max(requested_peak_bytes),
       arg_max(requested_peak_ns, (requested_peak_bytes, -requested_peak_seq)),
       arg_max(requested_peak_seq, (requested_peak_bytes, -requested_peak_seq)),
       max(allocated_peak_bytes), max(active_peak_bytes), max(reserved_peak_bytes), sum(events)
FROM memory_bucket WHERE session_id = $session GROUP BY ALL
"""
"""What peak_by_rank read before there were cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A database to be made."""

    name: str
    ranks: int
    fill: Callable[[duckdb.DuckDBPyConnection], int]
    has_blocks: bool


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    figures: list[Figure] = []
    for job in _jobs(options.quick):
        figures += _of_job(options, job)
    return [*figures, *_viewers(options)]


def _jobs(quick: bool) -> Iterator[Job]:
    sizes = ((64, 4_000_000), (1024, 2_000_000)) if quick else ((64, 100_000_000), (1024, 21_000_000))
    for ranks, events in sizes:
        name = f"{events / 1e6:.0f} M events, {ranks:,} ranks"
        yield Job(name=name, ranks=ranks, fill=_filling(ranks, events), has_blocks=True)
    seconds = 120 if quick else 3600
    yield Job(
        name=f"{seconds:,} s of 1,024 ranks, buckets alone",
        ranks=1024,
        fill=lambda connection: fill_buckets(connection, seconds=seconds),
        has_blocks=False,
    )


def _filling(ranks: int, events: int) -> Callable[[duckdb.DuckDBPyConnection], int]:
    def filling(connection: duckdb.DuckDBPyConnection) -> int:
        made = fill(connection, STEADY, events, ranks=ranks)
        fill_blocks(connection, STEADY, made, ranks=ranks)
        return made

    return filling


def _of_job(options: Options, job: Job) -> Iterator[Figure]:
    with _database(options, job) as path:
        figures = _told(path, job)
        yield from figures
        with connect(path) as queries:
            scale = _scale(queries, job)
            yield from _peaks(queries, job)
            yield from route_figures(queries, scale, ranges=QUICK_RANGES if options.quick else RANGES)
        interactions = QUICK_INTERACTIONS if options.quick else INTERACTIONS
        yield from browser_figures(path, scale, interactions=interactions)


@contextmanager
def _database(options: Options, job: Job) -> Iterator[Path]:
    kept = os.environ.get("RANKMEM_BENCH_DATABASES")
    name = "".join(letter if letter.isalnum() else "_" for letter in job.name)
    path = Path(kept or options.folder) / f"{name}.duckdb"
    if not path.exists():
        say(f"{job.name}: making the database")
        config = {"memory_limit": f"{MEMORY_BYTES}B", "temp_directory": str(options.folder)}
        with duckdb.connect(str(path), config=config) as connection:
            schema.prepare(connection)
            install_views(connection)
            job.fill(connection)
            fill_progress(connection)
    try:
        yield path
    finally:
        if not kept:
            path.unlink()


def _told(path: Path, job: Job) -> list[Figure]:
    """Tells the cells, then the other summaries; what the cells cost."""
    store = open_store(AggregatorConfig(database_path=path, memory_limit_bytes=MEMORY_BYTES))
    summaries = Summaries(store)
    before_bytes, began_s = store.used_bytes(), time.process_time()
    while summaries.levels.advance():
        pass
    cpu_s = time.process_time() - began_s
    store.checkpoint(0)
    grown = store.used_bytes() - before_bytes
    ((events,),) = _rows(store.read("SELECT sum(events)::BIGINT AS n FROM memory_bucket"))
    ((buckets,),), ((cells,),) = _rows(store.read(_BUCKETS)), _rows(store.read(_CELLS))
    told = summaries.levels.num_folds
    while summaries.advance():
        pass
    store.close()
    name = f"{job.name}: memory_level"
    if not told:
        return [Figure(what=f"{name}: rows / memory_bucket's", value=cells / buckets, at_most=1 / 3)]
    return [
        Figure(
            what=f"{name}: CPU for a million events",
            value=cpu_s / events * 1e6,
            unit="s",
            at_most=LEVEL_CPU_S_MAX,
            note=f"{told} tellings, {events:,} events",
        ),
        Figure(what=f"{name}: bytes an event", value=grown / events, unit="B", at_most=LEVEL_BYTES_MAX),
        Figure(
            what=f"{name}: rows / memory_bucket's",
            value=cells / buckets,
            at_most=1 / 3,
            note=f"{cells:,} and {buckets:,}",
        ),
    ]


def _rows(table: object) -> list[tuple[int, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]  # type: ignore[attr-defined]


def _scale(queries: Queries, job: Job) -> Scale:
    facts = queries.sql(
        "SELECT max(last_ns) - min(first_ns) AS span_ns, sum(events)::BIGINT AS events, "
        "max(seq_last) AS rank_events FROM memory_cell($session, 1024)",
        {"session": SESSION},
    ).to_pylist()[0]
    return Scale(name=job.name, ranks=job.ranks, has_blocks=job.has_blocks, **facts)


def _peaks(queries: Queries, job: Job) -> list[Figure]:
    """All ranks' peaks, from cells and, as before, from memory_bucket."""

    def cpu_ms(ask: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            began_s = time.process_time()
            ask()
            return 1e3 * (time.process_time() - began_s)

        return run

    given = {"session": SESSION}
    samples = alternate(
        {
            "cells": cpu_ms(
                lambda: queries.sql("SELECT * FROM peak_by_rank WHERE session_id = $session", given)
            ),
            "buckets": cpu_ms(lambda: queries.sql(_FORMER_PEAKS, given)),
        },
        6,
    )
    cells, buckets = samples["cells"][1:], samples["buckets"][1:]
    name = f"{job.name}: peak_by_rank"
    return [
        of_samples(f"{name}, CPU", cells, "ms", at_most=CPU_MS_MAX),
        of_ratio(f"{name}: its aggregation from memory_bucket / all of it", buckets, cells),
    ]


def _viewers(options: Options) -> Iterator[Figure]:
    """What 50 viewers of a live session take from ingest."""
    work = prepared(options)
    seen: list[dict[str, float]] = []
    samples = alternate(
        {
            "alone": lambda: work.events / send_paired(work),
            "viewed": lambda: work.events / send_paired(work, partial(_viewed, seen)),
        },
        2 if options.quick else 4,
        lambda text: say(f"ingest, {text}"),
    )
    yield of_samples("ingest, nobody looks", samples["alone"], "events/s")
    note = "the page and all its viewers run on the same cores"
    for who, name in (("page", "the page"), ("viewers", "the viewers themselves")):
        shares = [each[f"{who}_cores"] for each in seen]
        yield of_samples(f"{VIEWERS} viewers, cores that {name} take", shares, "")
    yield of_ratio(
        f"ingest with {VIEWERS} viewers / without",
        samples["viewed"],
        samples["alone"],
        at_least=0.97,
        note=note,
    )


@contextmanager
def _viewed(seen: list[dict[str, float]], address: str) -> Iterator[None]:
    script = Path(__file__).with_name("page_viewers.py")
    command = [sys.executable, str(script), address, str(VIEWERS), INGESTED]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("the viewers did not begin")
        yield
    finally:
        child.stdin.close()
        text = child.stdout.read().strip()
        say(f"viewers: {text}")
        seen.append(json.loads(text))
        child.wait(60)


if __name__ == "__main__":
    main("page", "the web page at size", measure)
