"""How long the two questions take that matter most, over 100 million events of 64 ranks.

``peak`` (each rank's high-water mark), ``job_peak`` (the instant of the highest sum over all ranks) and
``peak --by host`` are asked as the command line asks them: the very ``.sql`` files. Beside them DuckDB's
plain scan of the column they are about, and the peaks of the job and of each host as window sums over all
events, which also give the answers to compare. Two shapes: steady training, where every step reaches the
same height (no second stands out, so nothing can be left out by its maximum alone), and one that drifts
upwards.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import duckdb
from harness import Figure, Options, alternate, main, of_samples, say
from synthetic_database import DRIFTING, RANKS, SESSION, STEADY, Shape, fill

from rankmem_aggregator.sql import install_views, query_text
from rankmem_aggregator.store import schema

EVENTS: Final = 100_000_000
QUICK_EVENTS: Final = 5_000_000
MEMORY_LIMIT: Final = "6GB"  # of a laptop; the naive sum sorts within it
ROUNDS: Final = 5
NAIVE_ROUNDS: Final = 2  # minutes each at full size

SCAN: Final = "SELECT rank, max(requested_bytes) FROM memory_event GROUP BY rank"
NAIVE: Final = """
SELECT total_bytes, time_ns FROM (
    SELECT time_ns, rank, seq, sum(CASE action WHEN 'alloc' THEN size_bytes ELSE -size_bytes END)
           OVER (ORDER BY time_ns, rank, seq ROWS UNBOUNDED PRECEDING) AS total_bytes
    FROM memory_event
) ORDER BY total_bytes DESC, time_ns, rank, seq LIMIT 1
"""
NAIVE_BY_HOST: Final = """
SELECT DISTINCT ON (host_name) host_name, total_bytes, time_ns FROM (
    SELECT h.host_name, e.time_ns, e.rank, e.seq,
           sum(CASE action WHEN 'alloc' THEN size_bytes ELSE -size_bytes END)
           OVER (PARTITION BY h.host_name ORDER BY e.time_ns, e.rank, e.seq ROWS UNBOUNDED PRECEDING)
           AS total_bytes
    FROM memory_event AS e
    INNER JOIN rank_info AS r USING (session_id, attempt, rank)
    INNER JOIN host_info AS h ON h.host_uid = r.host_uid
) ORDER BY host_name, total_bytes DESC, time_ns, rank, seq
"""


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    figures: list[Figure] = []
    for shape in (STEADY, DRIFTING):
        path = options.folder / f"{shape.name}.duckdb"
        events = _make(path, shape, QUICK_EVENTS if options.quick else EVENTS)
        say(f"{shape.name}: {events:,} events, {path.stat().st_size / events:.1f} bytes each")
        with duckdb.connect(str(path), read_only=True, config={"memory_limit": MEMORY_LIMIT}) as connection:
            figures += _figures(connection, f"{shape.name}, {events / 1e6:.0f} M events of {RANKS} ranks")
        path.unlink()
    return figures


def _make(path: Path, shape: Shape, events: int) -> int:
    config = {"memory_limit": MEMORY_LIMIT, "temp_directory": str(path.parent)}
    with duckdb.connect(str(path), config=config) as connection:
        schema.prepare(connection)
        install_views(connection)
        return fill(connection, shape, events)


def _figures(connection: duckdb.DuckDBPyConnection, name: str) -> list[Figure]:
    asked = {"session": SESSION}
    peak = {**asked, "attempt": None, "rank": None}
    hosts = {**asked, "by": "host"}
    fast = alternate(
        {
            "peak": _timed(lambda: connection.sql(query_text("peak"), params=peak).to_arrow_table()),
            "job_peak": _timed(lambda: connection.sql(query_text("job_peak"), params=asked).to_arrow_table()),
            "by_host": _timed(
                lambda: connection.sql(query_text("peak_by_ranks"), params=hosts).to_arrow_table()
            ),
            "scan": _timed(lambda: connection.execute(SCAN).fetchall()),
        },
        ROUNDS + 1,  # the first fills the cache
        lambda text: say(f"{name}, {text}"),
    )
    answers: list[object] = []
    naive = alternate(
        {"naive": _timed(lambda: answers.append(connection.execute(NAIVE).fetchall()))},
        NAIVE_ROUNDS,
        lambda text: say(f"{name}, {text}"),
    )["naive"]
    peaks, jobs, by_host, scans = (fast[key][1:] for key in ("peak", "job_peak", "by_host", "scan"))
    job_s = statistics.median(jobs)
    return [
        of_samples(f"{name}: peak", peaks, "s", at_most=0.5),
        of_samples(f"{name}: DuckDB's scan of requested_bytes, highest by rank", scans, "s"),
        of_samples(f"{name}: exact peak of the job", jobs, "s", note=_compared(connection, answers[0])),
        of_samples(
            f"{name}: exact peak of each host", by_host, "s", at_most=1, note=_compared_hosts(connection)
        ),
        of_samples(f"{name}: naive window sum", naive, "s"),
        Figure(
            what=f"{name}: naive window sum / exact peak of the job",
            value=statistics.median(naive) / job_s,
            at_least=15,
        ),
        Figure(what=f"{name}: exact peak of the job / scan", value=job_s / statistics.median(scans)),
    ]


def _compared(connection: duckdb.DuckDBPyConnection, naive: object) -> str:
    """Whether the answer is the naive one, to the byte and the nanosecond."""
    rows = connection.execute(
        "SELECT DISTINCT job_peak_bytes, job_peak_ns FROM job_peak($session)", {"session": SESSION}
    ).fetchall()
    return "the naive sum's answer" if rows == naive else f"WRONG: {rows}, the naive sum says {naive}"


def _compared_hosts(connection: duckdb.DuckDBPyConnection) -> str:
    """The same of each host."""
    rows = connection.execute(
        "SELECT DISTINCT group_name, group_peak_bytes, group_peak_ns FROM group_peak($session, 'host') "
        "ORDER BY group_name",
        {"session": SESSION},
    ).fetchall()
    naive = connection.execute(NAIVE_BY_HOST).fetchall()
    return "the naive sum's answer" if rows == naive else f"WRONG: {rows}, the naive sum says {naive}"


def _timed(question: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        question()
        return time.perf_counter() - began

    return run


if __name__ == "__main__":
    main("peak_query", "the peak of each rank and of the job", measure)
