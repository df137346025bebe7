"""Summaries go to the lake, rows of events stay on hosts until they are wanted: never a smaller answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_shipping import WHOLE, copied, fetched, make_job, shipped
from lake_checks import calls, quick_differences, with_hashes
from lake_serving import SESSION, one_time, serving
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.server.aggregator import open as open_aggregator
from rankmem_protos.errors import Code, RankmemError

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
        with pytest.raises(RankmemError, match="are not here"):
            queries.job_peak(SESSION)


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
        with connect(aggregator.address) as remote:
            of_rank = remote.sql("SELECT count(*) AS n FROM memory_event WHERE rank = 3")["n"][0].as_py()
    with connect(f"lake:{lake}") as queries, connect(database) as file:
        events = {row["rank"]: row["events"] for row in file.ranks(SESSION).to_pylist()}
        assert of_rank == events[3]
        asked = [
            (name, arguments, options)
            for name, arguments, options in calls(file, SESSION)
            if options.get("rank") == 3 or (name == "live" and not options)
        ]
        assert len(asked) > 10
        for name, arguments, options in asked:
            expected = getattr(file, name)(*arguments, **options)
            assert getattr(queries, name)(*arguments, **options).equals(expected), (name, options)
        assert queries.peak_by(SESSION, by="category", rank=3).equals(
            file.peak_by(SESSION, by="category", rank=3)
        )
        for ask in (queries.ops, queries.modules, queries.job_peak):
            with pytest.raises(RankmemError, match=r"rank [012] of session"):
                ask(SESSION)
        with pytest.raises(RankmemError, match="rank 1 of session"):
            queries.ops(SESSION, rank=1)


def test_what_was_fetched_answers_all_as_a_database_does(tmp_path: Path, job: Path, database: Path) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address) as shipper:
        assert fetched(aggregator.address, [shipper], [3, 0]).is_whole
        assert fetched(aggregator.address, [shipper]).is_whole
        assert fetched(aggregator.address, [shipper]).came == 0
        assert not shipper.keeps_details
        assert not (job / "edge").exists()
    compact_lake(str(lake))
    assert check_lake(str(lake)).faults == ()
    with connect(database) as file, connect(f"lake:{lake}") as queries:
        found = quick_differences(file, queries, SESSION)
        assert {name.partition(" ")[0] for name in found} <= EXPECTED


def test_without_the_setting_nothing_stays(tmp_path: Path, job: Path) -> None:
    lake = tmp_path / "lake"
    with serving(lake) as aggregator, shipped(job, aggregator.address, WHOLE) as shipper:
        assert not shipper.keeps_details
    with connect(f"lake:{lake}") as queries:
        assert queries.job_peak(SESSION).num_rows
        buckets = queries.sql("SELECT max(seq_last // 64 - seq_first // 64) AS n FROM memory_bucket")
        assert buckets["n"][0].as_py() == 0
