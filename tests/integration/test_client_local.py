"""The Python client on a file: named questions, errors that help, nothing written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from constructed import BASE_NS, empty_database
from rankmem_aggregator import connect
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError
from two_sessions import NEW, OLD, two_sessions


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[Queries]:
    with connect(two_sessions(tmp_path / "mem.duckdb")) as opened:
        yield opened


def test_no_session_means_the_newest(queries: Queries) -> None:
    assert queries.session_id() == NEW
    assert queries.sessions()["session_id"].to_pylist() == [NEW, OLD]
    assert queries.session_id("test") == NEW


def test_a_session_is_found_by_the_beginning_of_its_id(queries: Queries) -> None:
    assert queries.session_id("0session000a") == OLD
    with pytest.raises(RankmemError, match="fits 2: 0SESSION000B, 0SESSION000A") as ambiguous:
        queries.session_id("0SESS")
    assert ambiguous.value.code is Code.INVALID
    with pytest.raises(RankmemError, match="no session 'nonsense' in") as unknown:
        queries.peak("nonsense")
    assert unknown.value.code is Code.NOT_FOUND


def test_peaks_come_highest_first_and_by_attempt(queries: Queries) -> None:
    peaks = queries.peak().select(["rank", "attempt", "peak_requested_bytes", "is_rank_peak"]).to_pylist()
    assert [tuple(row.values()) for row in peaks] == [(0, 0, 150, True), (1, 0, 70, True), (0, 1, 40, False)]
    assert queries.peak(rank=0, attempt=1).num_rows == 1


def test_operators_are_added_over_ranks_each_at_its_own_peak(queries: Queries) -> None:
    def held(table: object, *names: str) -> list[tuple[object, ...]]:
        return [tuple(row[name] for name in names) for row in table.to_pylist()]  # type: ignore[attr-defined]

    columns = ("operator", "live_bytes_at_peak", "allocated_bytes", "num_allocations", "largest_bytes")
    both = [("aten::mm", 120, 120, 2, 70), ("aten::empty", 100, 100, 1, 100)]
    assert held(queries.ops(), *columns) == both
    assert held(queries.ops(at="total"), *columns) == both
    by_rank = [("aten::empty", 0, 100), ("aten::mm", 1, 70), ("aten::mm", 0, 50)]
    assert held(queries.ops(by="rank"), "operator", "rank", "live_bytes_at_peak") == by_rank
    assert held(queries.ops(by="line", rank=0), "line", "live_bytes_at_peak") == [("model.py:3", 150)]
    later = held(queries.ops(at=BASE_NS + 135), "operator", "live_bytes_at_time")
    assert later == [("aten::empty", 100), ("aten::mm", 70)]


def test_live_shows_blocks_with_stack_and_age(queries: Queries) -> None:
    rows = queries.live(0).to_pylist()
    assert [(row["size_bytes"], row["operator"], row["age_ns"]) for row in rows] == [
        (100, "aten::empty", 10),
        (50, "aten::mm", 0),
    ]
    assert rows[0]["stack"] == ["model.py:3 f"]
    assert rows[0]["address"] is not None
    assert [row["size_bytes"] for row in queries.live(0, at=BASE_NS + 131).to_pylist()] == [100]
    assert [row["size_bytes"] for row in queries.live(0, attempt=1).to_pylist()] == [40]
    with pytest.raises(RankmemError, match=f"no rank 7 in session {NEW}"):
        queries.live(7)
    with pytest.raises(RankmemError, match=f"no attempt 7 of rank 0 of session {NEW}"):
        queries.live(0, attempt=7)
    with pytest.raises(RankmemError, match=f"no events on device cuda:3 in rank 0 of session {NEW}"):
        queries.live(0, device="cuda:3")
    with pytest.raises(RankmemError, match=f"no events on device cuda:3 in session {NEW}"):
        queries.ops(device="cuda:3", by="line")


def test_the_job_peak_names_each_share(queries: Queries) -> None:
    rows = queries.job_peak().to_pylist()
    assert [(row["job_peak_bytes"], row["rank"], row["requested_bytes"]) for row in rows] == [
        (220, 0, 150),
        (220, 1, 70),
    ]
    assert rows[0]["host_name"] == "node"


def test_the_other_questions_answer(queries: Queries) -> None:
    assert queries.ranks()["rank"].to_pylist() == [0, 1, 0]
    assert queries.hosts().num_rows == 1
    assert queries.peak_by_host().num_rows == 2
    assert queries.curve(0)["requested_peak_bytes"].to_pylist() == [150, 40]
    assert queries.stack(1)["function"].to_pylist() == ["f"]


def test_sql_takes_parameters_and_streams(queries: Queries) -> None:
    table = queries.sql(
        "SELECT $number::BIGINT + 1 AS n, $none IS NULL AS missing", {"number": 41, "none": None}
    )
    assert table.to_pylist() == [{"n": 42, "missing": True}]
    batches = list(queries.stream("SELECT * FROM range(100000)"))
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == 100_000
    nothing = list(queries.stream("SELECT 1 AS n WHERE false"))
    assert [(batch.num_rows, batch.schema.names) for batch in nothing] == [(0, ["n"])]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("DELETE FROM session", Code.DENIED),
        ("DROP VIEW peak_by_rank", Code.DENIED),
        ("SELECT * FROM nonsense", Code.INVALID),
        ("SELEC 1", Code.INVALID),
        ("", Code.INVALID),
    ],
)
def test_sql_that_does_not_read_is_refused(queries: Queries, sql: str, code: Code) -> None:
    with pytest.raises(RankmemError) as caught:
        queries.sql(sql)
    assert caught.value.code is code
    assert caught.value.hint
    assert queries.sessions().num_rows == 2


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RankmemError, match="no database") as caught:
        connect(tmp_path / "absent.duckdb")
    assert caught.value.code is Code.NOT_FOUND
    assert "rankmem run" in caught.value.hint
    assert not (tmp_path / "absent.duckdb").exists()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.duckdb"
    path.write_text("no database " * 1000)
    with pytest.raises(RankmemError, match="cannot read") as caught:
        connect(path)
    assert caught.value.code is Code.INVALID


def test_a_database_without_sessions_is_reported(tmp_path: Path) -> None:
    empty_database(str(tmp_path / "empty.duckdb")).close()
    with connect(tmp_path / "empty.duckdb") as queries:
        assert queries.sessions().num_rows == 0
        with pytest.raises(RankmemError, match=r"no session in .*empty\.duckdb") as caught:
            queries.peak()
    assert caught.value.code is Code.NOT_FOUND


def test_a_file_held_by_a_program_without_an_address_is_a_conflict(tmp_path: Path) -> None:
    path = two_sessions(tmp_path / "mem.duckdb")
    holder = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(RankmemError, match="another program holds") as caught:
            connect(path)
        process.communicate()
    assert caught.value.code is Code.CONFLICT


def test_the_file_stays_as_it_was(tmp_path: Path) -> None:
    path = two_sessions(tmp_path / "mem.duckdb")
    before = path.read_bytes()
    with connect(str(path)) as queries, pytest.raises(RankmemError):
        queries.sql("CREATE TABLE t AS SELECT 1")
    assert path.read_bytes() == before
    duckdb.connect(str(path)).close()


@pytest.mark.parametrize("package", ["rankmem", "rankmem_aggregator"])
def test_the_short_import_loads_nothing_heavy(package: str) -> None:
    check = (
        f"import sys; from {package} import connect; "
        "heavy = {'duckdb', 'grpc', 'pyarrow', 'numpy', 'torch'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_who_asks_a_file_loads_no_messages() -> None:
    check = (
        "import sys; import rankmem_aggregator.query.local; import rankmem_aggregator.lake.worker; "
        "heavy = {'grpc', 'google.protobuf', 'pandas'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
