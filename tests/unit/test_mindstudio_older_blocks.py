"""What components of an Ascend recording held before their first records: older blocks, never allocated."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ascend_files import MB, Story, store_parts, write_database
from constructed import BASE_NS, SESSION, RankLog, empty_database
from export_logs import CudaLog, database
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity
from summary_passes import summarise

pytestmark = pytest.mark.slow

END = 10**9


def a_late_component() -> Story:
    """The framework holds 3 MB from the beginning; the graph engine's first record shows that it held 5."""
    story = Story()
    block = story.malloc("aten::mm", MB)
    story.free(block)
    story.ge = 5 * MB
    graph = story.ge_malloc("Conv2D1", 2 * MB)
    story.malloc("aten::add", 512)
    story.ge_free(graph)
    return story


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with that story in it."""
    story = a_late_component()
    write_database(story, tmp_path / "ascend_pytorch_profiler_0.db")
    reader = FORMATS["mindstudio"]
    [recording] = reader.open(reader.files(tmp_path / "ascend_pytorch_profiler_0.db"))
    with empty_database(str(tmp_path / "r.duckdb")) as connection:
        store_parts(connection, recording, Identity(SESSION, 0, 0))
        connection.execute(
            "INSERT INTO session BY NAME SELECT $1 AS session_id, 'mindstudio' AS source", [SESSION]
        )
    return tmp_path / "r.duckdb"


@pytest.fixture
def connection(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(str(path)) as opened:
        yield opened


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters or None).fetchall()


def test_the_first_component_of_a_device_held_its_older_bytes_from_the_beginning(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    older = (
        "SELECT component, size_bytes, allocation_id < 0, allocated_ns IS NULL FROM allocation_record "
        "WHERE preexisting ORDER BY component"
    )
    assert rows(connection, older) == [("ge", 5 * MB, False, False), ("pytorch", 3 * MB, True, True)]


@pytest.mark.parametrize("summarised", [False, True])
def test_no_grouping_counts_an_older_block_as_allocated(
    connection: duckdb.DuckDBPyConnection, summarised: bool
) -> None:
    if summarised:
        summarise(connection, RankLog(), [END], final=True)
    told = "SELECT sum(allocated_bytes), sum(num_allocations) FROM made_total($id, $by)"
    for by in ("operator", "category", "module", "component", "stream", "phase", "step"):
        assert rows(connection, told, id=SESSION, by=by) == [(3 * MB + 512, 3)], by


@pytest.mark.parametrize("summarised", [False, True])
def test_every_grouping_adds_up_to_the_peak_and_has_a_time(
    connection: duckdb.DuckDBPyConnection, summarised: bool
) -> None:
    if summarised:
        summarise(connection, RankLog(), [END], final=True)
    [(peak,)] = rows(connection, "SELECT max(requested_bytes) FROM memory_event")
    [(first, last)] = rows(connection, "SELECT min(time_ns), max(time_ns) FROM memory_event")
    for by in ("component", "category", "stream", "operator"):
        found = rows(
            connection,
            "SELECT bytes_at_rank_peak, rank_peak_bytes, peak_time_ns, peak_seq FROM peak_by_group($id, $by)",
            id=SESSION,
            by=by,
        )
        assert sum(row[0] for row in found) == peak == found[0][1] == 10 * MB + 512, by
        assert all(row[2] is None if row[3] < 0 else first <= row[2] <= last for row in found), (by, found)


def test_what_is_alive_at_an_instant_is_what_the_totals_say_then(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    events = rows(connection, "SELECT time_ns, max_by(requested_bytes, seq) FROM memory_event GROUP BY ALL")
    for time_ns, held in events:
        [(found, blocks, older, aged)] = rows(
            connection,
            "SELECT sum(size_bytes), count(*), count(*) FILTER (preexisting), count(age_ns) "
            "FROM live_at($id, 0, 0, NULL, $at)",
            id=SESSION,
            at=time_ns,
        )
        assert found == held
        assert older >= 1
        assert aged == blocks - older


@pytest.mark.parametrize("name", ["x.raw.json.gz", "x.json", "x.json.gz", "x.html"])
def test_a_memory_timeline_is_written_with_times_alone(path: Path, tmp_path: Path, name: str) -> None:
    with connect(path) as queries:
        export(queries, "memory-timeline", tmp_path / name, force=True)
    if name.endswith(".html"):
        return
    data = (tmp_path / name).read_bytes()
    told = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    if "raw" in name:
        assert all(isinstance(number, int) for row in told for number in row)
        assert [row[0] for row in told] == sorted(row[0] for row in told)
    else:
        assert told[0] == sorted(told[0])
        assert max(sum(row) for row in told[1]) == 10 * MB + 512


def test_a_block_that_an_older_database_gives_no_time_stands_where_the_log_has_it(tmp_path: Path) -> None:
    job = CudaLog(device="cpu")
    job.log.alloc("first", 100, at=1_000)
    job.log.alloc("late", 30, at=2_000)
    job.log.allocations["late"] |= {"allocated_ns": None, "preexisting": True}
    with connect(database(tmp_path / "r.duckdb", [job])) as queries:
        export(queries, "memory-timeline", tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == [
        [BASE_NS // 1000 + 1],
        [[0, 0, 0, 0, 0, 0, 0, 0, 130]],
    ]


def test_a_release_that_tells_the_total_from_before_it_is_a_release_all_the_same(tmp_path: Path) -> None:
    """As the graph engine's are: two of one size in a row, and one that no record follows."""
    story = Story()
    story.malloc("aten::mm", MB)
    blocks = [story.ge_malloc(f"Conv2D{n}", size) for n, size in enumerate((2 * MB, 2 * MB, 5 * MB))]
    for block in blocks:
        before = story.ge
        story.ge_free(block)
        component, ns, _, *others = story.records[-1]
        story.records[-1] = (component, ns, before, *others)
        block.at_release = (before, *block.at_release[1:])
    story.malloc("aten::add", 512)
    write_database(story, tmp_path / "ascend_pytorch_profiler_0.db")
    reader = FORMATS["mindstudio"]
    [recording] = reader.open(reader.files(tmp_path / "ascend_pytorch_profiler_0.db"))
    with empty_database() as connection:
        store_parts(connection, recording, Identity(SESSION, 0, 0))
        held = rows(connection, "SELECT requested_bytes // $mb FROM memory_event ORDER BY seq", mb=MB)
        assert [row[0] for row in held] == [4, 6, 8, 13, 11, 9, 4, 4]
        told = "SELECT component, allocated_bytes // $mb FROM mindstudio.component_total ORDER BY seq"
        assert [row[1] for row in rows(connection, told, mb=MB) if row[0] == "GE"] == [2, 4, 9, 9, 7, 5]
        alive = rows(
            connection,
            "SELECT any_value(e.requested_bytes), sum(a.size_bytes) "
            "FROM memory_event AS e, allocation_record AS a "
            "WHERE a.allocation_id <= e.seq AND coalesce(a.freed_seq > e.seq, true) GROUP BY e.seq",
        )
        assert all(total == blocks for total, blocks in alive)
    closing = recording.closing()
    assert closing.unexplained_bytes == 0
    assert not any("not of the size" in remark for remark in closing.remarks)
