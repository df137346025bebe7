"""Whether a lake answers as the database it was imported from, in one process and through workers.

No figure but the number of answers that differ, which fails the program unless it is 0. ``lake`` asks the
same of its larger session. Quick: a session so small that CI has it made and asked in some seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from answers import INSTANT, RANK
from harness import Figure, Options, main, say
from synthetic_database import DRIFTING, SESSION, fill, fill_blocks, fill_progress

from lake_sessions import named_questions
from rankmem_aggregator import connect
from rankmem_aggregator.config import GIB, AggregatorConfig
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import SessionId
from rankmem_aggregator.store import schema
from rankmem_aggregator.store.store import open_store
from rankmem_aggregator.summaries.schedule import Summaries

EVENTS: Final = 4_194_304
QUICK_EVENTS: Final = 65_536
RANKS: Final = 64
QUICK_RANKS: Final = 16
MEMORY_BYTES: Final = 6 * GIB
SECOND_NS: Final = 1_000_000_000
_ID: Final = SessionId(SESSION)

Question = Callable[[Queries, int], pa.Table]
OF_ALL_RANKS: Final[dict[str, Question]] = {
    "peak of each rank, with instant": lambda q, at: q.peak(_ID),
    "exact peak of the job": lambda q, at: q.job_peak(_ID),
    "exact peak of each host": lambda q, at: q.peak_by(_ID, by="host"),
    "operators at each rank's peak": lambda q, at: q.ops(_ID, by="operator"),
    "peaks by category": lambda q, at: q.peak_by(_ID, by="category"),
    "held at an instant, all ranks": lambda q, at: q.held_at(at, _ID),
    "operators alive at an instant": lambda q, at: q.ops(_ID, by="operator", at=at),
    "blocks alive at an instant, by category": lambda q, at: q.ops(_ID, by="category", at=at),
    "steps of all ranks": lambda q, at: q.steps(_ID),
}
"""What is asked about all ranks; ``at``: an instant in the middle, ns."""
OF_ONE_RANK: Final[dict[str, Question]] = {
    "timeline of a rank by second": lambda q, at: q.curve(RANK, _ID),
    "timeline of a rank, one second to the event": lambda q, at: q.timeline(
        _ID, rank=RANK, from_ns=at - SECOND_NS // 2, until_ns=at + SECOND_NS // 2, points=100_000
    ),
    "timeline of a rank by category": lambda q, at: q.timeline(_ID, rank=RANK, by="category"),
    "live blocks of a rank": lambda q, at: q.live(RANK, _ID),
    "live blocks of a rank at an instant": lambda q, at: q.live(RANK, _ID, at=at),
    "steps of a rank": lambda q, at: q.steps(_ID, rank=RANK),
}
OF_EACH_KIND: Final = frozenset(
    {"exact peak of the job", "operators at each rank's peak", "held at an instant, all ranks"}
)
"""What quick asks of workers: by slices of time, sums over hosts, and by hosts."""


def measure(options: Options) -> list[Figure]:
    """How many answers differ."""
    database, lake = options.folder / "equal.duckdb", options.folder / "lake"
    ranks = QUICK_RANKS if options.quick else RANKS
    events = made(database, QUICK_EVENTS if options.quick else EVENTS, ranks)
    import_database(database, str(lake), part_rows=events // 4)
    say(f"{events:,} events of {ranks} ranks")
    with (
        connect(database) as file,
        connect(f"lake:{lake}") as alone,
        ScatteredQueries(f"lake:{lake}", "processes:2", worth_bytes=0) as scattered,
    ):
        return differing(file, alone, scattered, named=not options.quick)


def differing(file: Queries, alone: Queries, scattered: Queries, *, named: bool) -> list[Figure]:
    """The numbers of answers that differ: rows in their order, types, metadata.

    Args:
        file: the database.
        alone: a lake imported from it, asked in this process.
        scattered: the same lake, through workers; they are asked about all ranks alone.
        named: also each named query by itself.
    """
    at = amid_a_step(file)
    asked: dict[str, Question] = {**OF_ALL_RANKS, **OF_ONE_RANK}
    by_workers = set(OF_EACH_KIND)
    if named:
        for what, text, given in named_questions(SESSION, at, 1):
            asked[f"query {what}"] = lambda q, at, text=text, given=given: q.sql(text, given)  # type: ignore[misc]
        by_workers = asked.keys() - OF_ONE_RANK.keys()
    wrong: dict[str, list[str]] = {"one process": [], "workers": []}
    for number, (what, ask) in enumerate(asked.items(), 1):
        say(f"comparing {number} of {len(asked)}: {what}")
        expected = ask(file, at)
        assert expected.num_rows or what.startswith("query"), what  # two empty answers say nothing
        if not expected.equals(ask(alone, at), check_metadata=True):
            wrong["one process"].append(what)
        if what in by_workers and not expected.equals(ask(scattered, at), check_metadata=True):
            wrong["workers"].append(what)
    return [
        Figure(
            what=f"answers of the lake, {way}, that differ from DuckDB over the file",
            value=len(names),
            at_most=0,
            note=", ".join(names) or f"of {len(by_workers if way == 'workers' else asked)}",
            must=True,
        )
        for way, names in wrong.items()
    ]


def amid_a_step(queries: Queries) -> int:
    """An instant amid a step, halfway: blocks are alive on all ranks."""
    return int(queries.sql(INSTANT, {"rank": RANK}).column(0)[0].as_py())


def made(path: Path, events: int, ranks: int) -> int:
    """Writes the synthetic database with blocks, steps and summaries; returns how many events it has."""
    config = {"memory_limit": f"{MEMORY_BYTES}B", "temp_directory": str(path.parent)}
    with duckdb.connect(str(path), config=config) as connection:
        schema.prepare(connection)
        filled = fill(connection, DRIFTING, events, ranks=ranks)
        fill_blocks(connection, DRIFTING, filled, ranks=ranks)
        fill_progress(connection)
    store = open_store(AggregatorConfig(database_path=path, memory_limit_bytes=MEMORY_BYTES))
    summaries = Summaries(store)
    while summaries.advance():
        pass
    store.close()
    return filled


if __name__ == "__main__":
    main("lake_equal", "whether a lake answers as its database", measure)
