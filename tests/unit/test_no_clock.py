"""Ranks whose recordings have no times: no dates, no sums with others, and every answer says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs
from kept_answers import job_of
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_protos.clock import CLOCK_NS_MIN, distance_ns, has_clock
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but

pytestmark = pytest.mark.slow

TIMED = (0, 1)
UNTIMED = (2, 3)


def a_log(rank: int, *, size_bytes: int, has_times: bool, host: str = "host-0") -> RankLog:
    """A rank that holds a block from 10 to 20 ns, which ends at 30."""
    base = 0 if has_times else -BASE_NS
    log = RankLog(rank=rank, host_uid=host, started=base, ended=base + 30)
    log.alloc("block", size_bytes, at=base + 10, operator="aten::mm")
    log.free("block", at=base + 20)
    return log


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two ranks with a clock, two without."""
    path = tmp_path / "mixed.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(
            connection,
            [a_log(rank, size_bytes=100 + rank, has_times=rank in TIMED) for rank in (*TIMED, *UNTIMED)],
        )
    return path


@pytest.fixture
def without(tmp_path: Path) -> Path:
    """Two ranks without a clock."""
    path = tmp_path / "without.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [a_log(rank, size_bytes=100 + rank, has_times=False) for rank in UNTIMED])
    return path


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A rank without a clock, by itself."""
    path = tmp_path / "one.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [a_log(0, size_bytes=100, has_times=False)])
    return path


@pytest.fixture
def queries(mixed: Path) -> Iterator[Queries]:
    with connect(mixed) as opened:
        yield opened


def test_sums_over_ranks_are_of_those_with_a_clock(queries: Queries) -> None:
    [bound] = queries.job_peak_bound(SESSION).to_pylist()
    assert (bound["job_peak_bytes"], bound["sum_of_peaks_bytes"], bound["num_ranks"]) == (201, 201, 2)
    assert [row["rank"] for row in queries.job_peak(SESSION).to_pylist()] == [1, 0]
    assert [row["live_bytes"] for row in queries.job_peak_held(SESSION, by="operator").to_pylist()] == [201]
    [host] = queries.peak_by(SESSION, by="host").to_pylist()
    assert (host["num_ranks"], host["peak_bytes"], host["sum_of_peaks_bytes"]) == (4, 201, 201)
    for by in ("job", "rank", "category"):
        rows = queries.timeline(SESSION, by=by, rank="all").to_pylist()  # type: ignore[arg-type]
        assert min(row["time_ns"] for row in rows) >= BASE_NS, by
    assert {row["group"] for row in queries.timeline(SESSION, by="rank").to_pylist()} == {"rank 0", "rank 1"}


def test_each_rank_without_a_clock_has_its_own_answers(queries: Queries) -> None:
    peaks = {row["rank"]: row for row in queries.peak(SESSION).to_pylist()}
    assert {rank: row["peak_requested_bytes"] for rank, row in peaks.items()} == {
        0: 100,
        1: 101,
        2: 102,
        3: 103,
    }
    assert {rank for rank, row in peaks.items() if row["peak_time_utc"] is None} == set(UNTIMED)
    assert queries.timeline(SESSION, rank=2).num_rows > 0
    assert queries.live(3, SESSION).to_pylist()[0]["size_bytes"] == 103


def test_what_is_left_out_of_sums_is_reported(queries: Queries) -> None:
    rows = [row for row in queries.incompleteness(SESSION).to_pylist() if row["why"] == "no_clock"]
    assert [row["rank"] for row in rows] == list(UNTIMED)
    assert "left out of sums and curves over several ranks" in rows[0]["sentence"]
    with pytest.raises(RankmemError, match="no events with times of rank 2") as caught:
        queries.timeline(SESSION, by="job", rank=[0, 2])
    assert caught.value.code is Code.NOT_FOUND


def test_a_session_begins_with_the_ranks_that_know_when(queries: Queries) -> None:
    [session] = queries.sessions().to_pylist()
    assert (session["started_ns"], session["duration_ns"]) == (BASE_NS, 30)


def test_ranks_without_a_clock_alone_have_no_peak_of_the_job(without: Path) -> None:
    with connect(without) as queries:
        assert queries.job_peak(SESSION).num_rows == 0
        assert queries.job_peak_bound(SESSION).num_rows == 0
        [host] = queries.peak_by(SESSION, by="host").to_pylist()
        assert (host["peak_bytes"], host["sum_of_peaks_bytes"], host["highest_peak_bytes"]) == (
            None,
            None,
            103,
        )
        with pytest.raises(RankmemError, match="no events with times"):
            queries.timeline(SESSION, by="job")


def test_one_rank_without_a_clock_is_its_own_job(one: Path) -> None:
    with connect(one) as queries:
        [bound] = queries.job_peak_bound(SESSION).to_pylist()
        assert (bound["job_peak_bytes"], bound["job_peak_utc"]) == (100, None)
        assert queries.incompleteness(SESSION).num_rows == 0
        assert queries.timeline(SESSION, by="job").num_rows > 0


@pytest.mark.parametrize("made", long_but(["mixed", "without", "one"], "one"))
def test_no_answer_and_no_export_shows_1970(
    made: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue(made)
    for verb in (
        ["sessions"],
        ["peak"],
        ["peak", "--by", "host"],
        ["peak", "--by", "category"],
        ["ranks"],
        ["job-peak"],
        ["job-peak", "--by", "rank"],
        ["timeline"],
        ["live", "--rank", "2" if made != "one" else "0"],
        ["sql", "SELECT peak_time_utc FROM peak_by_rank"],
    ):
        done = CliRunner().invoke(app, [*verb, "--db", str(database)])
        assert done.exit_code == 0, (verb, done.output)
        assert "1970" not in done.output, verb
        assert "-4" not in done.output, (verb, "an offset of half a century")
        if made != "one" and verb[0] != "sessions" and verb[0] != "sql":
            assert "no times" in done.output, verb
    with connect(database) as queries:
        export(queries, "html", tmp_path / "page.html")
        export(queries, "mindstudio", tmp_path / "studio")
        export(queries, "chrome-trace", tmp_path / "trace.json")
    page = (tmp_path / "page.html").read_text()
    assert "1970-" not in page
    assert job_of(tmp_path / "page.html")
    assert not [path for path in (tmp_path / "studio").iterdir() if "1970" in path.name]


def test_the_job_peak_of_ranks_without_a_clock_is_reported_as_none(without: Path) -> None:
    done = CliRunner().invoke(app, ["job-peak", "--db", str(without)])
    assert done.exit_code == 0
    assert "no sum over the ranks" in done.stderr
    assert "certain" not in done.stderr


def test_ranks_of_unknown_hosts_share_no_clock_for_certain(tmp_path: Path) -> None:
    path = tmp_path / "unknown.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(
            connection,
            [a_log(rank, size_bytes=100, has_times=True, host="unknown") for rank in (0, 1)],
        )
    with connect(path) as queries:
        [bound] = queries.job_peak_bound(SESSION).to_pylist()
        assert (bound["job_peak_bytes"], bound["order_is_certain"]) == (200, False)


def test_a_distance_is_known_on_one_clock_alone() -> None:
    assert not has_clock(CLOCK_NS_MIN - 1)
    assert has_clock(CLOCK_NS_MIN)
    assert distance_ns(BASE_NS + 5, BASE_NS) == 5
    assert distance_ns(5, 2) == 3
    assert distance_ns(5, BASE_NS) is None
    assert distance_ns(None, 5) is None
    assert distance_ns(5, None) is None
