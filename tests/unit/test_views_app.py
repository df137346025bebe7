"""The component app and the components that a recording samples: unknown is NULL, and nothing is left out."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ascend_files import MB, Story, a_story, store_parts, write_database
from constructed import SESSION, RankLog, store_logs, store_rows
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity

COMPONENTS = """
SELECT group_name, bytes_at_rank_peak // $mb, peak_bytes // $mb, peak_reserved_bytes // $mb, is_sampled
FROM allocator_peak($id, 'component')
ORDER BY is_sampled, group_name
"""


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters or None).fetchall()


def imported(connection: duckdb.DuckDBPyConnection, story: Story, folder: Path) -> None:
    path = folder / "ascend_pytorch_profiler_0.db"
    write_database(story, path)
    reader = FORMATS["mindstudio"]
    [recording] = reader.open(reader.files(path))
    store_parts(connection, recording, Identity(SESSION, 0, 0))


def test_what_the_process_holds_is_unknown_in_a_sample_without_it(
    database: duckdb.DuckDBPyConnection,
) -> None:
    log = RankLog()
    log.alloc("block", 100, at=10, device="cuda:0")
    log.events[-1]["reserved_bytes"] = 200
    log.sample(None, at=20, device="cuda:0")
    store_logs(database, [log])
    assert rows(database, "SELECT app_reserved_bytes, known_bytes, app_bytes FROM app_curve") == [
        (None, 200, None)
    ]


def test_a_process_that_the_driver_does_not_list_has_an_app_that_is_unknown(
    database: duckdb.DuckDBPyConnection,
) -> None:
    log = RankLog()
    log.alloc("block", 100 * MB, at=10, device="cuda:0")
    log.sample(None, at=20, device="cuda:0")
    log.sample(None, at=30, device="cuda:0")
    store_logs(database, [log])
    assert rows(database, COMPONENTS, id=SESSION, mb=MB) == [
        ("pytorch", 100, 100, None, False),
        ("app", None, None, None, True),
    ]


def test_app_is_unknown_where_an_accelerators_reserved_bytes_are_not_known(
    database: duckdb.DuckDBPyConnection,
) -> None:
    log = RankLog()
    log.alloc("block", 100, at=10, device="cuda:0")
    log.sample(500, at=20, device="cuda:0")
    store_logs(database, [log])
    assert rows(database, "SELECT app_reserved_bytes, known_bytes, app_bytes FROM app_curve") == [
        (500, None, None)
    ]


@pytest.mark.parametrize(("source", "known"), [("tap", 0), ("snapshot", None), ("samples", None)])
def test_before_the_first_record_nothing_is_held_only_in_our_own_log(
    database: duckdb.DuckDBPyConnection, source: str, known: int | None
) -> None:
    log = RankLog()
    log.sample(500, at=1, device="cuda:0")
    log.alloc("block", 100, at=10, device="cuda:0")
    store_logs(database, [log])
    device = {"session_id": SESSION, "attempt": 0, "rank": 0, "device": "cuda:0", "source": source}
    store_rows(database, "device_info", [device])
    expected = [(known, None if known is None else 500)]
    assert rows(database, "SELECT known_bytes, app_bytes FROM app_curve") == expected


def test_the_peak_of_app_does_not_count_what_the_allocators_held_before_their_first_records(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = Story()
    story.sample(200 * MB, 300 * MB)  # before any record
    story.malloc("aten::mm", MB)
    story.sample(200 * MB, 300 * MB)  # before the graph engine's first record, which shows 5 MB older ones
    story.ge = 5 * MB
    graph = story.ge_malloc("Conv2D1", MB)
    story.sample(200 * MB, 300 * MB)
    story.ge_free(graph)
    imported(database, story, tmp_path)
    answer = rows(
        database,
        "SELECT app_reserved_bytes // $mb, known_bytes // $mb, app_bytes // $mb FROM app_curve "
        "WHERE app_reserved_bytes IS NOT NULL ORDER BY time_ns",
        mb=MB,
    )
    assert answer == [(200, None, None), (200, None, None), (200, 80, 120)]
    [app] = [row for row in rows(database, COMPONENTS, id=SESSION, mb=MB) if row[0] == "app"]
    assert app == ("app", 120, 120, 120, True)


def test_components_of_an_ascend_recording_say_what_they_reserved_and_the_sampled_ones_are_there(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    imported(database, a_story(), tmp_path)
    assert rows(database, COMPONENTS, id=SESSION, mb=MB) == [
        ("ge", 6, 6, 16, False),
        ("pytorch", 5, 5, 64, False),
        ("workspace", 4, 5, 6, False),
        ("APP", 0, 200, 200, True),
        ("GE", 0, 200, 200, True),
        ("HCCL", 0, 200, 200, True),
        ("app", 124, 124, 124, True),
    ]


def test_the_groups_that_are_not_sampled_add_up_to_the_peak(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    imported(database, a_story(), tmp_path)
    [(together, peak)] = rows(
        database,
        "SELECT sum(bytes_at_rank_peak) FILTER (WHERE NOT is_sampled), any_value(rank_peak_bytes) "
        "FROM allocator_peak($id, 'component')",
        id=SESSION,
    )
    assert together == peak


def test_a_recording_of_samples_alone_has_its_components(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = Story()
    story.modules = [("HCCL", story.now, 100 * MB), ("RUNTIME", story.now, 0)]
    imported(database, story, tmp_path)
    assert rows(database, COMPONENTS, id=SESSION, mb=MB) == [("HCCL", None, 100, 100, True)]


def test_a_sample_of_a_database_without_figures_is_unknown(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    write_database(a_story(), path)
    with sqlite3.connect(path) as opened:
        opened.execute("UPDATE NPU_MEM SET hbm = NULL, ddr = NULL")
    opened.close()
    reader = FORMATS["mindstudio"]
    [recording] = reader.open(reader.files(path))
    store_parts(database, recording, Identity(SESSION, 0, 0))
    samples = "SELECT DISTINCT app_reserved_bytes, device_used_bytes, app_bytes FROM app_curve"
    assert rows(database, samples) == [(None, None, None)]
