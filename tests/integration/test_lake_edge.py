"""Summaries go to the lake, rows of events stay on hosts until they are wanted: never a smaller answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from edge_shipping import WHOLE, copied, fetched, make_job, running, shipped
from lake_checks import calls, quick_differences, with_hashes
from lake_pieces import catalog_of
from lake_serving import SESSION, one_time, serving
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.lake import compact as compacting
from rankmem_aggregator.lake import unasked
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.query import fetching
from rankmem_aggregator.query.fetching import fetch_peak
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.server.aggregator import open as open_aggregator
from rankmem_aggregator.sql import query_text
from rankmem_protos.errors import Code, RankmemError
from repetitions import PROFILE
from waiting import until

SUMMARY_CALLS = ("ranks", "hosts", "peak", "peak_by_host", "steps", "incompleteness", "peak_bound")
OF_EVENTS = (
    "SELECT count(*) FROM memory_event",
    "SELECT * FROM allocation LIMIT 1",
    "SELECT operator FROM operator_call",
    "SELECT 1 FROM category_change",
)
EXPECTED = {"memory_bucket", "availability", "rank_availability", "self_cost", "rank_status", "status"}
"""What is stored otherwise, and what sending it cost."""


@pytest.fixture(scope="module")
def clock() -> Iterator[None]:
    with one_time():
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("original"))


@pytest.fixture
def job(tmp_path: Path, original: Path) -> Path:
    """The spools of four ranks of two hosts."""
    return copied(original, tmp_path)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, original: Path, clock: None) -> Path:
    """What a database has of the same logs."""
    folder = tmp_path_factory.mktemp("database")
    path = folder / "job.duckdb"
    config = AggregatorConfig(database_path=path, listen="127.0.0.1:0")
    # The mode is on: a database gets everything at once all the same.
    with (
        open_aggregator(config) as aggregator,
        shipped(copied(original, folder), aggregator.address) as shipper,
    ):
        assert not shipper.keeps_details
    return with_hashes(path, path.with_suffix(".hashed"))


def test_summaries_answer_as_the_whole_does(tmp_path: Path, job: Path, database: Path) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address) as shipper:
        assert shipper.keeps_details
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        for name in SUMMARY_CALLS:
            assert getattr(queries, name)(SESSION).equals(getattr(file, name)(SESSION)), name
        peak = file.job_peak(SESSION).to_pylist()[0]["job_peak_bytes"]
        (interval,) = queries.job_peak_interval(SESSION).to_pylist()
        assert interval["reached_bytes"] <= peak <= interval["bound_bytes"]
        of_ranks = [row["peak_requested_bytes"] for row in file.peak(SESSION).to_pylist()]
        assert max(of_ranks) <= interval["reached_bytes"]
        assert interval["bound_bytes"] <= sum(of_ranks)
        with pytest.raises(RankmemError, match="are not here") as raised:
            queries.job_peak(SESSION)
        assert f"rankmem fetch {SESSION} --around job-peak" in raised.value.hint


def test_what_needs_events_names_their_rank_and_the_command(tmp_path: Path, job: Path) -> None:
    lake, errors = tmp_path / "lake", []
    with serving(lake) as aggregator, shipped(job, aggregator.address):
        for target in (aggregator.address, f"lake:{lake}"):
            with connect(target) as queries:
                for text in OF_EVENTS:
                    with pytest.raises(RankmemError) as raised:
                        queries.sql(text)
                    errors.append(raised.value)
    for error in errors:
        assert error.code is Code.NOT_FOUND
        assert f"of session {SESSION} are not here" in error.message
        assert f"rankmem fetch {SESSION} --ranks" in (error.hint or "")


def test_a_rank_that_was_fetched_is_answered_and_others_are_not(
    tmp_path: Path, job: Path, database: Path
) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address) as shipper:
        found = fetched(aggregator.address, [shipper], [3])
        assert found.is_whole
        assert found.came > 1
        with connect(aggregator.address) as remote, connect(database) as file:
            check_rank(remote, file, 3, every=4)
    with connect(f"lake:{lake}") as queries, connect(database) as file:
        check_rank(queries, file, 3, every=1 if PROFILE == "long" else 3)
        assert queries.peak_by(SESSION, by="category", rank=3).equals(
            file.peak_by(SESSION, by="category", rank=3)
        )
        for ask in (queries.ops, queries.modules, queries.job_peak_held):
            with pytest.raises(RankmemError, match=r"rank [012] of session"):
                ask(SESSION)


def check_rank(queries: Queries, file: Queries, rank: int, *, every: int = 1) -> None:
    """Questions about a rank have the answers of the database, and those about another are refused."""
    asked = [
        (name, arguments, options)
        for name, arguments, options in calls(file, SESSION)
        if options.get("rank") == rank or (name == "live" and not options)
    ]
    assert len(asked) > 10
    for name, arguments, options in asked[::every]:
        expected = getattr(file, name)(*arguments, **options)
        assert getattr(queries, name)(*arguments, **options).equals(expected), (name, options)
    with pytest.raises(RankmemError, match=f"rank {rank - 2} of session"):
        queries.ops(SESSION, rank=rank - 2)


@pytest.mark.long
def test_what_was_fetched_answers_all_as_a_database_does(tmp_path: Path, job: Path, database: Path) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address) as shipper:
        assert fetched(aggregator.address, [shipper], [3, 0]).is_whole
        assert fetched(aggregator.address, [shipper]).is_whole
        assert fetched(aggregator.address, [shipper]).came == 0
        assert not shipper.keeps_details
        assert not (job / "edge").exists()
    compact(lake)
    assert check_lake(str(lake)).faults == ()
    check_cut(lake, database)


def compact(lake: Path) -> None:
    """Joins and cuts, as once the session is over."""
    with patch.object(compacting, "sessions_over", lambda *about: frozenset({SESSION})):
        compact_lake(str(lake), part_rows=300)


def check_cut(lake: Path, database: Path) -> None:
    """The session is cut, and one process and an engine answer as the database does."""
    assert catalog_of(str(lake)).has_openings(SESSION)
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        found = quick_differences(file, queries, SESSION)
        assert {name.partition(" ")[0] for name in found} <= EXPECTED
        with ScatteredQueries(str(lake), "processes:1", worth_bytes=0) as workers:
            given = {"session": SESSION}
            answers = workers.by_time(query_text("job_peak"), given, SESSION, "job")
            assert answers is not None
            assert answers.equals(file.sql(query_text("job_peak"), given))
            assert workers.ops(SESSION).equals(file.ops(SESSION))


def test_what_comes_from_a_host_after_the_cut_is_in_the_answers(
    tmp_path: Path, job: Path, database: Path
) -> None:
    lake, early = tmp_path / "lake", tmp_path / "early" / SESSION
    early.mkdir(parents=True)
    for spool in ("0-0-1", "0-1-1"):
        (job / spool).rename(early / spool)
    with serving(lake) as aggregator:
        with shipped(early, aggregator.address) as shipper:
            assert fetched(aggregator.address, [shipper]).is_whole
        compact(lake)
        assert catalog_of(str(lake)).has_openings(SESSION)
        with shipped(job, aggregator.address) as shipper:
            for _ in range(2):  # the second time after another run of compact, which must not cut it
                with (
                    ScatteredQueries(str(lake), "processes:1", worth_bytes=0) as workers,
                    pytest.raises(RankmemError, match=r"rank [23] of session .* are not here"),
                ):
                    workers.ops(SESSION)
                compact(lake)
                assert not catalog_of(str(lake)).has_openings(SESSION)
            assert fetched(aggregator.address, [shipper]).is_whole
            assert fetched(aggregator.address, [shipper]).came == 0
            assert not shipper.keeps_details
    compact(lake)
    assert check_lake(str(lake)).faults == ()
    check_cut(lake, database)


@pytest.mark.parametrize(
    "is_asked", [pytest.param(True, id="asked", marks=pytest.mark.long), pytest.param(False, id="unasked")]
)
def test_the_jobs_peak_needs_what_is_around_it_alone(
    tmp_path: Path, job: Path, database: Path, is_asked: bool
) -> None:
    lake, room = tmp_path / "lake", 0 if is_asked else 1 << 28
    quick = patch.multiple(fetching, POLL_S=0.3, UNCONNECTED_S=1.0)
    with (
        quick,
        patch.multiple(unasked, LOOK_S=0.3, AGAIN_S=0.3),
        serving(lake, lake_peak_bytes=room) as aggregator,
        shipped(job, aggregator.address) as shipper,
        running([shipper]),
        connect(aggregator.address) as remote,
        connect(database) as file,
        connect(f"lake:{lake}") as queries,
    ):
        if is_asked:
            assert isinstance(remote, RemoteQueries)
            assert fetch_peak(remote, SESSION, timeout_s=60.0).is_whole
        else:
            until("its peak is known", lambda: is_answered(queries), 200.0)
        for each in (queries, remote):
            shares = each.job_peak(SESSION)
            assert shares.equals(file.job_peak(SESSION))
            assert each.job_peak_bound(SESSION, shares=shares).equals(file.job_peak_bound(SESSION))
            (interval,) = each.job_peak_interval(SESSION).to_pylist()
            peak = shares["job_peak_bytes"][0].as_py()
            assert interval["reached_bytes"] == interval["bound_bytes"] == peak
            with pytest.raises(RankmemError, match="are not here") as raised:
                each.job_peak_held(SESSION, shares=shares)
            assert f"rankmem fetch {SESSION} --ranks" in raised.value.hint
        places = queries.sql("SELECT sum(here) AS n, sum(stretches) AS m FROM rank_availability")
        (row,) = places.to_pylist()
        assert 0 < row["n"] < row["m"]


def is_answered(queries: Queries) -> bool:
    try:
        queries.job_peak(SESSION)
    except RankmemError as exc:
        if "--around job-peak" not in exc.hint:
            raise
        return False
    return True


def test_stretches_come_by_time_too(tmp_path: Path, job: Path) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address) as shipper:
        with connect(aggregator.address) as remote:  # by this aggregator's measure of the hosts' clocks
            times = remote.sql("SELECT first_ns FROM availability WHERE rank = 1 ORDER BY 1")["first_ns"]
        at_ns = times[len(times) // 2].as_py()
        span = {"from_ns": at_ns - 10**8, "until_ns": at_ns + 10**8}
        assert fetched(aggregator.address, [shipper], [0, 1], **span).is_whole
    with connect(f"lake:{lake}") as queries:
        in_span = (
            "SELECT rank, sequence_first FROM availability WHERE place = 'host' AND rank < 2 "
            "AND first_ns <= $until_ns AND last_ns >= $from_ns ORDER BY ALL"
        )
        here = queries.sql("SELECT rank, sequence_first FROM availability WHERE place = 'here' ORDER BY ALL")
        assert here == queries.sql(in_span, span)
        (row,) = queries.sql("SELECT sum(here) AS n, sum(stretches) AS m FROM rank_availability").to_pylist()
        assert 0 < row["n"] < row["m"]


def test_without_the_setting_nothing_stays(tmp_path: Path, job: Path) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address, WHOLE) as shipper:
        assert not shipper.keeps_details
    with connect(f"lake:{lake}") as queries:
        assert queries.job_peak(SESSION).num_rows
        buckets = queries.sql("SELECT max(seq_last // 64 - seq_first // 64) AS n FROM memory_bucket")
        assert buckets["n"][0].as_py() == 0
