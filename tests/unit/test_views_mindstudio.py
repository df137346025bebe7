"""The schema mindstudio: MindStudio's own columns in its own order, and its three views, computed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from constructed import SESSION, RankLog, empty_database, store_logs
from rankmem_aggregator.sql import head_of, mindstudio_names, mindstudio_text

MB = 1 << 20
SHAPES = {
    "HOST_INFO": "hostUid hostName",
    "RANK_DEVICE_MAP": "rankId deviceId",
    "MEMORY_RECORD": "component timestamp totalAllocated totalReserved totalActive streamPtr deviceId",
    "OP_MEMORY": "name size allocationTime releaseTime activeReleaseTime duration activeDuration "
    "allocationTotalAllocated allocationTotalReserved allocationTotalActive releaseTotalAllocated "
    "releaseTotalReserved releaseTotalActive streamPtr deviceId",
    "NPU_MEM": "type ddr hbm timestampNs deviceId",
    "NPU_MODULE_MEM": "moduleId timestampNs totalReserved deviceId",
    "NPU_OP_MEM": "operatorName addr type size timestampNs globalTid totalAllocate totalReserve component "
    "deviceId",
    "STRING_IDS": "id value",
    "ENUM_MODULE": "id name",
    "META_DATA": "name value",
    "SESSION_TIME_INFO": "startTimeNs endTimeNs",
    "STEP_TIME": "id startNs endNs",
    "NPU_INFO": "id name",
}


def a_rank_on_two_streams() -> RankLog:
    """Stream 0 holds 200 MB from 1 ms on; stream 7 holds 300 MB from 2, asked back at 3, free at 5."""
    log = RankLog(rank=3)
    log.segment("segment_alloc", 1 << 30, 600 * MB, at=500_000)
    log.events[-1]["stream"] = 0
    log.alloc("weights", 200 * MB, at=1_000_000, device="cuda:0", stream=0, operator="aten::empty")
    log.alloc("other", 300 * MB, at=2_000_000, device="cuda:0", stream=7, operator="aten::mm")
    log.request_free("other", at=3_000_000)
    log.free("other", at=5_000_000)
    log.sample(900 * MB, at=6_000_000, device="cuda:0")
    for event in log.events:
        event["reserved_bytes"] = 600 * MB
        event["stream"] = 7 if event["size_bytes"] == 300 * MB else 0
    return log


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with empty_database() as opened:
        store_logs(opened, [a_rank_on_two_streams()])
        yield opened


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters or None).fetchall()


@pytest.mark.parametrize("name", SHAPES)
def test_a_table_has_mindstudios_columns_after_ours(database: duckdb.DuckDBPyConnection, name: str) -> None:
    shown = [column[0] for column in database.execute(f"SELECT * FROM mindstudio.{name}").description]
    ours = [column for column in shown if column in ("sessionId", "attempt")]
    ours += ["rankId"] if "rankId" in shown and name != "RANK_DEVICE_MAP" else []
    assert shown == ours + SHAPES[name].split()


@pytest.mark.parametrize("name", mindstudio_names())
def test_a_file_has_its_question_and_its_columns(name: str) -> None:
    head = head_of(mindstudio_text(name))
    assert head.question.endswith("?")
    assert head.columns


def test_every_record_comes_as_pta_and_as_pta_with_ge(database: duckdb.DuckDBPyConnection) -> None:
    counted = rows(
        database,
        "SELECT s.value, count(*), max(totalAllocated), max(totalReserved) "
        "FROM mindstudio.MEMORY_RECORD AS r JOIN mindstudio.STRING_IDS AS s ON s.id = r.component "
        "WHERE rankId = 3 GROUP BY 1 ORDER BY 1",
    )
    assert counted == [
        ("APP", 1, None, 900 * MB),
        ("PTA", 5, 500 * MB, 600 * MB),
        ("PTA+GE", 5, 500 * MB, 600 * MB),
    ]


def test_an_operators_memory_knows_its_two_releases(database: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        database,
        "SELECT value, size, duration, activeDuration, allocationTotalAllocated, deviceId "
        "FROM mindstudio.OP_MEMORY AS o JOIN mindstudio.STRING_IDS AS s ON s.id = o.name ORDER BY 2",
    )
    assert found == [
        ("aten::empty", 200 * MB, None, None, 200 * MB, 0),
        ("aten::mm", 300 * MB, 1_000_000, 3_000_000, 500 * MB, 0),
    ]


def test_overall_shows_operators_and_the_process(database: duckdb.DuckDBPyConnection) -> None:
    found = rows(database, "SELECT * FROM mindstudio.overall_curve($id, 3)", id=SESSION)
    assert {legend for _, legend, _ in found} == {
        "Operators Allocated",
        "Operators Activated",
        "Operators Reserved",
        "App Reserved",
    }
    assert [(t, mb) for t, legend, mb in found if legend == "Operators Allocated"] == [
        (0.5, 0.0),
        (1.0, 200.0),
        (2.0, 500.0),
        (3.0, 500.0),
        (5.0, 200.0),
    ]
    assert [(t, mb) for t, legend, mb in found if legend == "App Reserved"] == [(6.0, 900.0)]


def test_a_stream_shows_the_devices_totals_at_its_own_records(database: duckdb.DuckDBPyConnection) -> None:
    found = rows(database, "SELECT * FROM mindstudio.stream_curve($id, 3)", id=SESSION)
    curves: dict[str, list[tuple[float, float]]] = {}
    for time_ms, legend, mb in found:
        curves.setdefault(legend, []).append((time_ms, mb))
    assert curves["Allocated of 0"] == [(0.5, 0.0), (1.0, 200.0)]
    assert curves["Allocated of 7"] == [(2.0, 500.0), (3.0, 500.0), (5.0, 200.0)]
    assert curves["Reserved of 7"] == [(2.0, 600.0), (3.0, 600.0), (5.0, 600.0)]


def test_the_component_table_leaves_out_small_ones(database: duckdb.DuckDBPyConnection) -> None:
    ask = "SELECT * FROM mindstudio.component_peak($id, 3, threshold_bytes := $mb)"
    assert rows(database, ask, id=SESSION, mb=100 * MB) == [("PYTORCH", 600.0, 0.5), ("APP", 300.0, 6.0)]
    assert rows(database, ask, id=SESSION, mb=400 * MB) == [("PYTORCH", 600.0, 0.5)]


def test_components_show_the_frameworks_allocator_as_pta(database: duckdb.DuckDBPyConnection) -> None:
    legends = rows(
        database, "SELECT DISTINCT legend FROM mindstudio.component_curve($id, 3) ORDER BY 1", id=SESSION
    )
    assert [legend for (legend,) in legends] == [
        "App Reserved",
        "PTA Activated",
        "PTA Allocated",
        "PTA Reserved",
    ]
