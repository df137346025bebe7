"""However a session is cut, its rows and answers are the same: random logs, clocks and sizes of parts."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import SECOND_NS, SESSION, RankLog, empty_database, store_logs
from lake_checks import num_rows
from lake_pieces import catalog_of, in_pieces
from rankmem_aggregator import connect
from rankmem_aggregator.lake import compact
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.query.types import SessionId
from repetitions import examples

pytestmark = pytest.mark.slow
TABLES = ("memory_event", "memory_bucket", "allocation_record", "category_change", "rank_info")


@st.composite
def a_log(draw: st.DrawFn, attempt: int, rank: int) -> RankLog:
    """Allocations and frees at any times, also at once and on the edge of a second."""
    log = RankLog(
        rank=rank,
        attempt=attempt,
        host_uid=f"host-{draw(st.integers(0, 2))}",
        offset_ns=draw(st.sampled_from((0, 1, -1, 86_000_000, -30_000_000, 5 * SECOND_NS))),
        ended=draw(st.sampled_from((None, 9 * SECOND_NS, 20 * SECOND_NS))),
    )
    if draw(st.booleans()):
        log.preexisting("older", 7)
    edges = st.sampled_from([n * SECOND_NS + d for n in range(9) for d in (-1, 0, 1)])
    times = draw(st.lists(st.one_of(st.integers(0, 9 * SECOND_NS), edges), max_size=12))
    alive: list[str] = []
    for number, at in enumerate(sorted(max(0, time) for time in times)):
        if alive and draw(st.booleans()):
            log.free(alive.pop(), at=at, told_later=draw(st.booleans()))
        else:
            alive.append(f"b{number}")
            log.alloc(alive[-1], draw(st.integers(1, 100)), at=at, category="activation")
            log.means(alive[-1], "gradient", at=at)
    return log


@st.composite
def a_job(draw: st.DrawFn) -> list[RankLog]:
    ranks, attempts = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    return [draw(a_log(attempt, rank)) for attempt in range(attempts) for rank in range(ranks)]


@examples(0.05)
@given(logs=a_job(), part_rows=st.integers(1, 30))
def test_however_a_session_is_cut_its_answers_are_the_same(logs: list[RankLog], part_rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database, lake = Path(folder) / "random.duckdb", Path(folder) / "lake"
        with empty_database(str(database)) as connection:
            store_logs(connection, logs)
        import_database(database, str(lake), part_rows=part_rows)
        session = SessionId(SESSION)
        with connect(database) as file, connect(f"lake:{lake}") as queries:
            assert num_rows(queries) == num_rows(file)
            for table in TABLES:
                statement = f"SELECT * FROM {table} ORDER BY ALL"
                assert queries.sql(statement) == file.sql(statement)
            assert queries.job_peak(session) == file.job_peak(session)
            assert queries.peak_by(session, by="host") == file.peak_by(session, by="host")
            assert queries.peak_by(session, by="category") == file.peak_by(session, by="category")
            assert queries.ranks(session) == file.ranks(session)


@examples(0.05)
@given(
    logs=a_job(),
    part_rows=st.integers(1, 30),
    pieces=st.integers(1, 6),
    seed=st.integers(0, 99),
    over=st.booleans(),
)
def test_however_a_session_was_written_its_compacted_rows_are_the_same(
    logs: list[RankLog], part_rows: int, pieces: int, seed: int, over: bool
) -> None:
    """Files of an aggregator, cut at random; of a session that goes on, or is over."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        whole, lake = Path(folder) / "whole", f"{folder}/lake"
        with empty_database(f"{folder}/random.duckdb") as connection:
            store_logs(connection, logs)
        import_database(Path(f"{folder}/random.duckdb"), str(whole), part_rows=part_rows)
        in_pieces(whole, lake, random.Random(seed), pieces)
        patch.setattr(compact, "sessions_over", lambda *about: frozenset([SESSION] if over else ()))
        compact.compact_lake(lake, part_rows=part_rows)
        files = [(f.table_name, f.session_id, f.segment, f.hosts) for f in catalog_of(lake).files]
        assert len(files) == len(set(files))
        session = SessionId(SESSION)
        with connect(f"lake:{whole}") as expected, connect(f"lake:{lake}") as queries:
            assert num_rows(queries) == num_rows(expected)
            for table in TABLES:
                statement = f"SELECT * FROM {table} ORDER BY ALL"
                assert queries.sql(statement) == expected.sql(statement)
            assert queries.job_peak(session) == expected.job_peak(session)
            assert queries.peak_by(session, by="category") == expected.peak_by(session, by="category")
