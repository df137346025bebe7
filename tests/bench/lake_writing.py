"""A lake that aggregators write: their CPU, two of them, when an event is seen, files after a compaction.

Stage: part of the benchmark ``lake``. In: the events of ``ingest``, sent to aggregators of a database and of
a lake in turn; the ranks of ``delay``, with a reader; a training that is recorded and imported. Out: figures.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from delay import SESSION, Watch, events_seen, run, status_seen
from disk_bytes import record
from harness import Figure, Options, alternate, of_ratio, of_samples, say
from ingest import SENDERS, Work, prepared, send_to
from processes import aggregator

from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database

ROUNDS: Final = 3
RATE: Final = 20_000
"""Events a second of all ranks together while a reader asks."""
INTERVAL_S: Final = 15
"""Of an aggregator of a lake, its default."""
QUICK_INTERVAL_S: Final = 2
STATUS_POLL_S: Final = 0.5
"""An answer of ``status`` takes an aggregator 0.1 s of CPU: who asks more often waits for the answers."""
CORES: Final = 4
"""Two aggregators and their senders need so many for their ratio to mean anything."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What all runs of one kind took."""

    cpu_s: list[float] = field(default_factory=list)
    """Of the aggregators, a million events, with all that they do because of them after they are stored."""


def figures(options: Options) -> list[Figure]:
    """All figures."""
    return [*_sent(options), *_seen(options), _recorded(options)]


def _sent(options: Options) -> list[Figure]:
    """The same batches to an aggregator of a database, to one of a lake, and to two of one lake."""
    work = prepared(options)
    took = {kind: _Sent() for kind in ("database", "lake", "two")}
    rates = alternate(
        {
            "database": lambda: _rate(work, took["database"], lakes=0),
            "lake": lambda: _rate(work, took["lake"], lakes=1),
            "two": lambda: _rate(work, took["two"], lakes=2),
        },
        ROUNDS,
        lambda text: say(f"events/s to {text}"),
    )
    cores = len(os.sched_getaffinity(0))
    note = "" if cores >= CORES else f"says nothing on {cores} cores, which one and its senders fill"
    database, lake = took["database"].cpu_s, took["lake"].cpu_s
    return [
        of_samples("an aggregator's CPU for a million events, database", database, "s"),
        of_samples("an aggregator's CPU for a million events, lake", lake, "s"),
        of_ratio("an aggregator's CPU for a million events, lake / database", lake, database, at_most=0.5),
        of_samples(f"{SENDERS} senders to one aggregator of a lake", rates["lake"], "events/s"),
        of_ratio(
            "events a second, two aggregators of a lake / one",
            rates["two"],
            rates["lake"],
            note=note,
            **({} if note else {"at_least": 1.8}),
        ),
    ]


def _rate(work: Work, took: _Sent, *, lakes: int) -> float:
    """Events a second until all are stored; aggregators of one lake, or one of a database."""
    folder = Path(tempfile.mkdtemp(dir=work.options.folder))
    settings = {"RANKMEM_SERVE_LAKE": str(folder / "lake")} if lakes else {}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(aggregator(folder / f"{number}.duckdb", settings))
            for number in range(max(1, lakes))
        ]
        before = sum(server.cpu_s() for server in servers)
        taken_s = send_to(work, [server.address for server in servers])
        took.cpu_s.append((sum(server.idle_cpu_s() for server in servers) - before) / work.events * 1e6)
    shutil.rmtree(folder)
    return work.events / taken_s


def _seen(options: Options) -> list[Figure]:
    """How late an event is seen at the aggregator, and in its lake; then that lake is compacted."""
    interval_s = QUICK_INTERVAL_S if options.quick else INTERVAL_S
    found = []
    for what, at_most in (("status of the aggregator", 1.0), ("the lake", interval_s + 5.0)):
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        lake = str(folder / "lake")
        settings = {"RANKMEM_SERVE_LAKE": lake, "RANKMEM_SERVE_LAKE_INTERVAL_S": str(interval_s)}
        with aggregator(folder / "log.duckdb", settings) as server:
            watch = Watch(f"lake:{lake}", events_seen())
            if what != "the lake":
                watch = Watch(server.address, status_seen, STATUS_POLL_S)
            seen = run(options, server, RATE, 4.0 * interval_s, watch)
        p50, p99, worst = np.quantile(seen.delays_s, [0.5, 0.99, 1.0])
        say(f"{what}: p50 {p50:.3f} s, p99 {p99:.3f} s")
        found.append(
            Figure(
                what=f"event to visible in {what}, {RATE:,} events/s, every {interval_s} s a commit: p99",
                value=float(p99),
                unit="s",
                at_most=at_most,
                note=f"p50 {p50:.2f}, worst {worst:.2f} s",
            )
        )
    return [*found, *_compacted(lake)]


def _compacted(lake: str) -> list[Figure]:
    before = _most_files(lake)
    compact_lake(lake)
    return [
        Figure(
            what="files of a table, segment and group of hosts after a compaction, at most",
            value=_most_files(lake),
            at_most=2,
            note=f"{before} before",
        )
    ]


def _most_files(lake: str) -> int:
    files = [file for file in read_catalog(LakeFiles(lake)).files if file.session_id == SESSION]
    return max(Counter((file.table_name, file.segment, file.hosts) for file in files).values())


def _recorded(options: Options) -> Figure:
    """A training of two ranks, recorded as a user does."""
    database = options.folder / "recorded.duckdb"
    record(options, database)
    done = import_database(database, str(options.folder / "recorded"))
    return Figure(
        what="recorded training: bytes of the lake / of the DuckDB file",
        value=done.size_bytes / database.stat().st_size,
        at_most=0.35,
    )
