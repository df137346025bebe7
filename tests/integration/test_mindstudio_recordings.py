"""Profiler folders of a job on two Ascend devices: views give back MEMORY_RECORD and OP_MEMORY row by row.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
Their files are read here by sqlite3, csv and Decimal, not by the reader.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ascend_files import store_parts
from constructed import SESSION, empty_database
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings" / "ascend"
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/ascend"),
]
Row = tuple[Any, ...]


def output(form: str, rank: int) -> Path:
    return FOLDER / form / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"


def of_database(rank: int, table: str, name: str) -> list[Row]:
    path = output("db", rank) / f"ascend_pytorch_profiler_{rank}.db"
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as database:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[1] != name]
        rows = database.execute(
            f"SELECT s.value, {', '.join(f't.{c}' for c in columns)} FROM {table} AS t "
            f"JOIN STRING_IDS AS s ON s.id = t.{name}"
        ).fetchall()
    database.close()
    return rows


def of_csv(rank: int, name: str) -> list[Row]:
    with (output("text", rank) / name).open(newline="") as file:
        header, *lines = list(csv.reader(file))
    scales = [_scale(column) for column in header]
    return [tuple(_value(cell.strip(), s) for cell, s in zip(line, scales, strict=True)) for line in lines]


def _scale(column: str) -> int | None:
    units = {"(us)": 1000, "(MB)": 1 << 20, "(KB)": 1 << 10}
    return next((scale for unit, scale in units.items() if column.endswith(unit)), None)


def _value(cell: str, scale: int | None) -> Any:
    if not cell:
        return None
    if scale is not None:
        return int(Decimal(cell) * scale)
    return int(cell.removeprefix("NPU:")) if cell.removeprefix("NPU:").isdigit() else cell


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple((value is None, value) for value in row))


@pytest.fixture(scope="module", params=[("db", 0), ("db", 1), ("text", 0), ("text", 1)])
def stored(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, duckdb.DuckDBPyConnection]]:
    form, rank = request.param
    file = next(path for path in output(form, rank).iterdir() if path.suffix in (".db", ".csv"))
    reader = FORMATS["mindstudio"]
    [recording] = reader.open(reader.files(file))
    assert recording.facts.rank == rank
    with empty_database() as connection:
        store_parts(connection, recording, Identity(SESSION, 0, rank))
        assert recording.closing().events == 495
        yield form, rank, connection


def shown(connection: duckdb.DuckDBPyConnection, table: str, name: str, where: str = "true") -> list[Row]:
    return connection.execute(
        f"SELECT i.value, t.* EXCLUDE (sessionId, attempt, rankId, {name}) FROM mindstudio.{table} AS t "
        f"JOIN mindstudio.STRING_IDS AS i ON i.id = t.{name} WHERE {where}"
    ).fetchall()


def test_memory_record_is_as_told(stored: tuple[str, int, duckdb.DuckDBPyConnection]) -> None:
    form, rank, connection = stored
    if form == "db":
        told = of_database(rank, "MEMORY_RECORD", "component")
        assert len(told) == 990
        assert in_order(shown(connection, "MEMORY_RECORD", "component", "i.value <> 'APP'")) == in_order(told)
    else:
        told = of_csv(rank, "memory_record.csv")
        assert len(told) == 1003
        # The graph engine's active bytes are an empty cell there and 0 in databases.
        told = [(*r[:4], 0 if r[0] == "GE" else r[4], *r[5:]) for r in told]
        assert in_order(shown(connection, "MEMORY_RECORD", "component")) == in_order(told)


def test_op_memory_is_as_told(stored: tuple[str, int, duckdb.DuckDBPyConnection]) -> None:
    form, rank, connection = stored
    told = of_database(rank, "OP_MEMORY", "name") if form == "db" else of_csv(rank, "operator_memory.csv")
    found = shown(connection, "OP_MEMORY", "name")
    assert len(told) == len(found) == 184
    assert in_order(found) == in_order(told)


def test_components_are_as_told(stored: tuple[str, int, duckdb.DuckDBPyConnection]) -> None:
    form, rank, connection = stored
    found = connection.execute(
        "SELECT m.name, n.timestampNs, n.totalReserved, n.deviceId FROM mindstudio.NPU_MODULE_MEM AS n "
        "JOIN mindstudio.ENUM_MODULE AS m ON m.id = n.moduleId"
    ).fetchall()
    if form == "text":
        told = of_csv(rank, "npu_module_mem.csv")
    else:
        path = output("db", rank) / f"ascend_pytorch_profiler_{rank}.db"
        with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as database:
            told = database.execute(
                "SELECT m.name, n.timestampNs, n.totalReserved, n.deviceId FROM NPU_MODULE_MEM AS n "
                "JOIN ENUM_MODULE AS m ON m.id = n.moduleId"
            ).fetchall()
        database.close()
    assert len(told) == 1001
    assert in_order(found) == in_order(told)


def test_the_framework_blocks_explain_its_totals(stored: tuple[str, int, duckdb.DuckDBPyConnection]) -> None:
    """The graph engine's releases tell the total from before them, so its own differ by one release."""
    *_, connection = stored
    [(events, fewest, most)] = connection.execute(
        "WITH own AS ("
        "SELECT seq, active_bytes AS told FROM mindstudio.component_total WHERE component = 'PTA') "
        "SELECT count(*), min(o.told - l.bytes), max(o.told - l.bytes) FROM own AS o, LATERAL ("
        "SELECT sum(size_bytes) AS bytes FROM allocation_record AS a WHERE a.component = 'pytorch' "
        "AND a.allocation_id <= o.seq AND (a.freed_seq IS NULL OR a.freed_seq > o.seq)) AS l"
    ).fetchall()
    assert (events, fewest, most) == (381, 0, 0)


def test_memscope_totals_are_those_that_mindstudio_made_of_the_same_dump() -> None:
    path = FOLDER / "memscope" / "memscope_dump_20260527062213.db"
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as database:
        told = database.execute("SELECT timestamp, totalSize FROM memory_allocation ORDER BY id").fetchall()
    database.close()
    [recording] = FORMATS["memscope"].open([path])
    with empty_database() as connection:
        store_parts(connection, recording, Identity(SESSION, 0, 0))
        found = "SELECT time_ns, requested_bytes FROM memory_event ORDER BY seq"
        assert connection.execute(found).fetchall() == told
        assert connection.execute("SELECT count(stack_id) FROM allocation_record").fetchone() == (6,)


def test_a_memscope_dump_of_two_processes_is_two_ranks() -> None:
    path = FOLDER / "memscope" / "memscope_dump_20250428113810.csv"
    recordings = FORMATS["memscope"].open([path])
    assert [recording.facts.pid for recording in recordings] == [2_523_738, 2_523_740]
    with empty_database() as connection:
        for rank, recording in enumerate(recordings):
            store_parts(connection, recording, Identity(SESSION, 0, rank))
        counted = connection.execute(
            "SELECT count(*) FILTER (WHERE action = 'alloc' AND device <> 'pinned'), "
            "count(*) FILTER (WHERE action = 'free_completed' AND device <> 'pinned') FROM memory_event"
        ).fetchone()
        assert counted == (241, 14)


COMPONENT_TABLE = """
SELECT t4.name, t3.size, t3.timestamp_maxsize
FROM (
    SELECT t1.moduleId AS id, t1.totalReserved AS size, min(t1.timestampNs) AS timestamp_maxsize
    FROM NPU_MODULE_MEM AS t1
    JOIN (
        SELECT moduleId, max(totalReserved) AS max_total_reserved
        FROM NPU_MODULE_MEM GROUP BY moduleId HAVING max_total_reserved >= 104857600
    ) AS t2 ON t1.moduleId = t2.moduleId AND t1.totalReserved = t2.max_total_reserved
    WHERE t1.deviceId = ?
    GROUP BY t1.moduleId, t1.totalReserved
) AS t3
JOIN ENUM_MODULE AS t4 ON t3.id = t4.id
ORDER BY 1
"""
"""As Insight asks for its component table (DbMemoryDataBase::QueryComponentDetail), in bytes and ns."""


def test_the_component_table_is_insights(stored: tuple[str, int, duckdb.DuckDBPyConnection]) -> None:
    form, rank, connection = stored
    if form == "text":
        pytest.skip(
            "Insight's statement is for databases; the samples of CSV files are held against them above"
        )
    path = output("db", rank) / f"ascend_pytorch_profiler_{rank}.db"
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as database:
        told = database.execute(COMPONENT_TABLE, [rank]).fetchall()
    database.close()
    found = connection.execute(
        "SELECT group_name, peak_bytes, peak_time_ns FROM allocator_peak($id, 'component') "
        "WHERE is_sampled AND group_name <> 'app' AND peak_bytes >= 104857600 ORDER BY 1",
        {"id": SESSION},
    ).fetchall()
    assert found == told
    assert [name for name, *_ in told] == ["APP", "HCCL"]


def test_allocators_reserved_what_their_records_say(
    stored: tuple[str, int, duckdb.DuckDBPyConnection],
) -> None:
    form, rank, connection = stored
    rows = (
        of_database(rank, "MEMORY_RECORD", "component") if form == "db" else of_csv(rank, "memory_record.csv")
    )
    told = {name: max(row[3] for row in rows if row[0] == name) for name in ("PTA", "GE")}
    found = connection.execute(
        "SELECT group_name, peak_reserved_bytes FROM allocator_peak($id, 'component') WHERE NOT is_sampled",
        {"id": SESSION},
    ).fetchall()
    assert dict(found) == {"pytorch": told["PTA"], "ge": told["GE"]}


def test_app_is_what_the_process_holds_beyond_both_allocators_once_both_are_known(
    stored: tuple[str, int, duckdb.DuckDBPyConnection],
) -> None:
    form, rank, connection = stored
    rows = (
        of_database(rank, "MEMORY_RECORD", "component") if form == "db" else of_csv(rank, "memory_record.csv")
    )
    known_from = max(min(row[1] for row in rows if row[0] == name) for name in ("PTA", "GE"))
    samples = connection.execute(
        "SELECT time_ns, app_reserved_bytes, known_bytes, app_bytes FROM app_curve "
        "WHERE app_reserved_bytes IS NOT NULL ORDER BY time_ns"
    ).fetchall()
    assert len(samples) == 13
    reserved = {row[3] for row in rows if row[0] == "PTA+GE"}
    for time_ns, held, known, app in samples:
        if time_ns < known_from:
            assert (known, app) == (None, None)
        else:
            assert known in reserved
            assert app == held - known
    others = "SELECT count(app_bytes) FROM app_curve WHERE app_reserved_bytes IS NULL"
    assert connection.execute(others).fetchone() == (0,)


@pytest.mark.parametrize("by", ["operator", "module", "category", "phase", "step", "component", "stream"])
def test_every_grouping_adds_up_to_the_peak_and_counts_no_older_block_as_allocated(
    stored: tuple[str, int, duckdb.DuckDBPyConnection], by: str
) -> None:
    form, rank, connection = stored
    rows = of_database(rank, "OP_MEMORY", "name") if form == "db" else of_csv(rank, "operator_memory.csv")
    asked = {"id": SESSION, "by": by}
    peaks = "SELECT sum(bytes_at_rank_peak), any_value(rank_peak_bytes) FROM peak_by_group($id, $by)"
    [(together, peak)] = connection.execute(peaks, asked).fetchall()
    assert together == peak
    made = "SELECT sum(allocated_bytes), sum(num_allocations) FROM made_total($id, $by)"
    named = [row[1] for row in rows if row[2] is not None and row[1] > 0]
    assert connection.execute(made, asked).fetchall() == [(sum(named), len(named))]


def test_memscope_peaks_are_the_highest_that_the_pools_say_they_used() -> None:
    path = FOLDER / "memscope" / "memscope_dump_20250428113810.csv"
    used: dict[tuple[int, str], int] = {}
    modules: dict[tuple[int, str, str], int] = {}
    highest: dict[tuple[int, str, str], int] = {}
    live: dict[tuple[int, str], tuple[tuple[int, str, str], int]] = {}
    names = {"3": "HCCL", "7": "RUNTIME", "255": "module 255"}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            process, device = int(row["Process Id"]), f"npu:{row['Device Id']}"
            told = dict(part.split(":") for part in row["Attr"].strip("{}").split(",") if ":" in part)
            if row["Event Type"] == "PTA":
                used[process, device] = max(used.get((process, device), 0), int(told["used"]))
            elif row["Event"] == "MALLOC" and row["Device Id"] != "host" and told["MID"] in names:
                key = process, device, names[told["MID"]]
                live[process, told["addr"]] = key, int(told["size"])
                modules[key] = modules.get(key, 0) + int(told["size"])
                highest[key] = max(highest.get(key, 0), modules[key])
            elif row["Event"] == "FREE" and (process, told.get("addr", "")) in live:
                key, size = live.pop((process, told["addr"]))
                modules[key] -= size
    assert used == {(2_523_738, "npu:0"): 3_659_776, (2_523_740, "npu:1"): 3_659_776}
    with empty_database() as connection:
        for rank, recording in enumerate(FORMATS["memscope"].open([path])):
            store_parts(connection, recording, Identity(SESSION, 0, rank))
        found = connection.execute(
            "SELECT rank, device, peak_allocated_bytes FROM peak_by_rank WHERE device <> 'pinned' ORDER BY 1"
        ).fetchall()
        assert found == [(0, "npu:0", 3_659_776), (1, "npu:1", 3_659_776)]
        sampled = connection.execute(
            "SELECT rank, device, group_name, peak_bytes FROM allocator_peak($id, 'component') "
            "WHERE is_sampled AND device <> 'pinned'",
            {"id": SESSION},
        ).fetchall()
        processes = {2_523_738: 0, 2_523_740: 1}
        assert sorted(sampled) == sorted(
            (processes[p], d, name, size) for (p, d, name), size in highest.items()
        )
        peaks = "SELECT peak_requested_bytes FROM peak_by_rank WHERE device = 'npu:1'"
        assert connection.execute(peaks).fetchall() == [(3_659_776,)]
