"""A lake beside the database it was imported from, or beside which it was written: docs/scale.md's budgets.

The database is the synthetic one with blocks, steps and summaries: 1,024 ranks on 128 hosts. Each question is
asked of both in turn, the same SQL in this process, and the answers are compared: one that differs fails the
program. CPU is that of all threads. ``lake_workers`` has worker processes, ``lake_writing`` aggregators.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lake_workers
import lake_writing
from harness import Figure, Options, alternate, main, of_ratio, of_samples, say
from lake_equal import OF_ALL_RANKS, Question, amid_a_step, differing, made
from synthetic_database import SESSION

from rankmem_aggregator import connect
from rankmem_aggregator.lake.catalog import add_progress, read_catalog
from rankmem_aggregator.lake.cutting import PART_ROWS
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import SessionId

EVENTS: Final = 201_326_592
QUICK_EVENTS: Final = 4_194_304
RANKS: Final = 1024
QUICK_RANKS: Final = 64
ROUNDS: Final = 5
FILES: Final = 50_000
QUICK_FILES: Final = 5_000
FILES_OF_A_SESSION: Final = 50
FILES_OF_A_COMMIT: Final = 5
BUDGETS: Final = {
    "exact peak of the job": 1.7,
    "exact peak of each host": 1.7,
    "operators at each rank's peak": 1.7,
    "peaks by category": 1.9,
    "held at an instant, all ranks": 5.0,
    "operators alive at an instant": 1.7,
    "blocks alive at an instant, by category": 2.7,
}
"""CPU over the lake / over the file, at most; of other questions none is set. The design had less: see
docs/decisions.md."""
_ID: Final = SessionId(SESSION)


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    database, lake = options.folder / "lake.duckdb", options.folder / "lake"
    ranks = QUICK_RANKS if options.quick else RANKS
    events = made(database, QUICK_EVENTS if options.quick else EVENTS, ranks)
    name = f"{events / 1e6:.0f} M events of {ranks} ranks"
    say(f"{name}: {database.stat().st_size / events:.1f} bytes an event")
    began = time.process_time()
    done = import_database(database, str(lake), part_rows=PART_ROWS // (8 if options.quick else 1))
    cpu_s = time.process_time() - began
    files = len(read_catalog(LakeFiles(str(lake))).files)
    return [
        Figure(
            what=f"{name}: bytes an event in the lake", value=done.size_bytes / events, note=f"{files} files"
        ),
        Figure(
            what=f"{name}: bytes of the lake / of the DuckDB file",
            value=done.size_bytes / database.stat().st_size,
            at_most=0.35,
        ),
        Figure(what=f"{name}: CPU of the import, a million events", value=cpu_s / events * 1e6, unit="s"),
        *_compared(database, lake),
        *_asked(database, lake, name),
        *_by_workers(database, lake, name),
        *_planned(lake, QUICK_FILES if options.quick else FILES),
        *lake_writing.figures(options),
    ]


def _compared(database: Path, lake: Path) -> list[Figure]:
    with (
        connect(database) as file,
        connect(f"lake:{lake}") as alone,
        ScatteredQueries(f"lake:{lake}", "processes:2", worth_bytes=0) as scattered,
    ):
        return differing(file, alone, scattered, named=False)


def _asked(database: Path, lake: Path, name: str) -> list[Figure]:
    figures = []
    with connect(database) as file, connect(f"lake:{lake}") as over:
        at = amid_a_step(file)
        for what, question in OF_ALL_RANKS.items():
            for queries in (file, over):
                question(queries, at)  # fills the caches
            cpu = alternate(
                {"file": _cpu_of(question, file, at), "lake": _cpu_of(question, over, at)},
                ROUNDS,
                lambda text, what=what: say(f"{what}: {text}"),  # type: ignore[misc]
            )
            figures.append(of_samples(f"{name}: {what}: CPU over the file", cpu["file"], "s"))
            budget = {"at_most": BUDGETS[what]} if what in BUDGETS else {}
            figures.append(
                of_ratio(f"{name}: {what}: CPU, lake / file", cpu["lake"], cpu["file"], **budget)  # type: ignore[arg-type]
            )
    return figures


def _by_workers(database: Path, lake: Path, name: str) -> list[Figure]:
    with connect(database) as file:
        at = amid_a_step(file)
    questions = {
        what: lambda queries, ask=question: ask(queries, at)  # type: ignore[misc]
        for what, question in OF_ALL_RANKS.items()
    }
    return lake_workers.figures(f"lake:{lake}", name, SESSION, questions, "exact peak of the job")


def _cpu_of(question: Question, queries: Queries, at: int) -> Callable[[], float]:
    def run() -> float:
        began = time.process_time()
        question(queries, at)
        return time.process_time() - began

    return run


def _planned(lake: Path, num_files: int) -> list[Figure]:
    """Opens a lake that names many files of other sessions, in many commits, and asks about one."""
    files = LakeFiles(str(lake))
    like = read_catalog(files).of_table("memory_event")[0]
    many = [
        dataclasses.replace(
            like, session_id=session, segment=segment, path=like.path.replace(SESSION, session)
        )
        for session in (f"0OTHER{number:06d}" for number in range(num_files // FILES_OF_A_SESSION))
        for segment in range(FILES_OF_A_SESSION)
    ]
    for number, first in enumerate(range(0, len(many), FILES_OF_A_COMMIT)):
        new = many[first : first + FILES_OF_A_COMMIT]
        add_progress(files, new, app="bench", sequence=number + 1)
    log = sum(not found.path.endswith(".parquet") for found in files.listing("lake_progress/_delta_log"))
    say(f"{len(many):,} files in {number + 1:,} commits, of which {log:,} are in the log of lake_progress")

    def run() -> float:
        began = time.perf_counter()
        with connect(f"lake:{lake}") as queries:
            queries.peak(_ID)
        return time.perf_counter() - began

    return [
        of_samples(
            f"open a lake of {num_files:,} files, {number + 1:,} commits, and ask the peak of a session",
            [run() for _ in range(ROUNDS)],
            "s",
            at_most=1,
        )
    ]


if __name__ == "__main__":
    main("lake", "a lake beside its database: bytes, CPU, plan", measure)
