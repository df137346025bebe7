"""MindStudio's folders: exactly its tables and headers, and the same curves when they are read again."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from ascend_files import (
    MB,
    MODULE_HEADER,
    OPERATOR_HEADER,
    RECORD_HEADER,
    STATIC_HEADER,
    Story,
    a_story,
    store_parts,
    write_csvs,
    write_database,
)
from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from export_logs import database as cuda_database
from export_logs import training
from rankmem_aggregator import connect
from rankmem_aggregator.exports.contract import ExportResult
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.exports.mindstudio_totals import TotalsAt
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity
from rankmem_imports.search import search
from rankmem_protos.errors import RankmemError

pytestmark = pytest.mark.slow

COLUMNS = {
    "SESSION_TIME_INFO": "startTimeNs INTEGER, endTimeNs INTEGER",
    "HOST_INFO": "hostUid TEXT, hostName TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "MEMORY_RECORD": "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
    "totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
    "OP_MEMORY": "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, "
    "activeReleaseTime INTEGER, duration INTEGER, activeDuration INTEGER, allocationTotalAllocated INTEGER, "
    "allocationTotalReserved INTEGER, allocationTotalActive INTEGER, releaseTotalAllocated INTEGER, "
    "releaseTotalReserved INTEGER, releaseTotalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
    "NPU_MEM": "type INTEGER, ddr NUMERIC, hbm NUMERIC, timestampNs INTEGER, deviceId INTEGER",
    "NPU_MODULE_MEM": "moduleId INTEGER, timestampNs INTEGER, totalReserved NUMERIC, deviceId INTEGER",
    "STRING_IDS": "id INTEGER, value TEXT",
    "ENUM_MODULE": "id INTEGER, name TEXT",
    "META_DATA": "name TEXT, value TEXT",
    "STEP_TIME": "id INTEGER, startNs INTEGER, endNs INTEGER",
    "NPU_INFO": "id INTEGER, name TEXT",
}
CURVES = (
    "SELECT i.value, r.* EXCLUDE (sessionId, attempt, component) FROM mindstudio.MEMORY_RECORD AS r "
    "JOIN mindstudio.STRING_IDS AS i ON i.id = r.component WHERE i.value <> 'APP' ORDER BY ALL"
)
Row = tuple[Any, ...]


def exported(path: Path, out: Path, **asked: Any) -> ExportResult:
    with connect(path) as queries:
        return export(queries, "mindstudio", out, **asked)


def of_story(story: Story, folder: Path) -> Path:
    """A database with the story's recording in it."""
    (folder / "in").mkdir(parents=True)
    write_csvs(story, folder / "in")
    write_database(story, folder / "in" / f"ascend_pytorch_profiler_{story.rank}.db")
    reader = FORMATS["mindstudio"]
    path = folder / "r.duckdb"
    [recording] = reader.open(reader.files(folder / "in" / "memory_record.csv"))
    with empty_database(str(path)) as connection:
        store_parts(connection, recording, Identity(SESSION, 0, story.rank))
        connection.execute(
            "INSERT INTO session BY NAME SELECT $1 AS session_id, 'mindstudio' AS source", [SESSION]
        )
    return path


def outputs(out: Path) -> list[Path]:
    return sorted(out.glob("*_ascend_pt/ASCEND_PROFILER_OUTPUT"))


def rows(path: Path, sql: str) -> list[Row]:
    with sqlite3.connect(path) as connection:
        found = connection.execute(sql).fetchall()
    connection.close()
    return found


def tables(path: Path, table: str, name: str) -> list[Row]:
    columns = [row[1] for row in rows(path, f"PRAGMA table_info({table})") if row[1] != name]
    told = rows(
        path,
        f"SELECT s.value, {', '.join(f't.{column}' for column in columns)} FROM {table} AS t "
        f"JOIN STRING_IDS AS s ON s.id = t.{name}",
    )
    return sorted(told, key=lambda row: tuple((value is None, value) for value in row))


def test_a_recording_leaves_as_it_came(tmp_path: Path) -> None:
    story = a_story(2)
    story.statics = [("TOTAL", "m", "1", 0, 0, MB), ("Add", "m", "1", 1, 2, 512)]
    path = of_story(story, tmp_path)
    written = exported(path, tmp_path / "out")
    assert written.counts == {"records": len(story.told(with_apps=False)), "blocks": len(story.blocks)}
    [output] = outputs(tmp_path / "out")
    before = tmp_path / "in" / "ascend_pytorch_profiler_2.db"
    after = output / "ascend_pytorch_profiler_2.db"
    for table, name in (("MEMORY_RECORD", "component"), ("OP_MEMORY", "name"), ("NPU_MEM", "type")):
        assert tables(after, table, name) == tables(before, table, name), table
    for table in ("RANK_DEVICE_MAP", "STEP_TIME", "NPU_INFO"):
        assert rows(after, f"SELECT * FROM {table}") == rows(before, f"SELECT * FROM {table}"), table
    modules = "SELECT name, timestampNs, totalReserved FROM NPU_MODULE_MEM JOIN ENUM_MODULE ON id = moduleId"
    assert sorted(rows(after, modules)) == sorted(rows(before, modules))
    for name in ("memory_record.csv", "npu_module_mem.csv", "static_op_mem.csv"):
        told = (tmp_path / "in" / name).read_text().splitlines()
        assert sorted((output / name).read_text().splitlines()) == sorted(told), name


def test_tables_and_headers_are_mindstudios_to_the_letter(tmp_path: Path) -> None:
    story = a_story()
    story.statics = [("TOTAL", "m", "1", 0, 0, MB)]
    exported(of_story(story, tmp_path), tmp_path / "out")
    [output] = outputs(tmp_path / "out")
    path = output / "ascend_pytorch_profiler_0.db"
    assert {name for (name,) in rows(path, "SELECT name FROM sqlite_master")} == set(COLUMNS)
    for table, columns in COLUMNS.items():
        declared = rows(path, f"PRAGMA table_info({table})")
        assert ", ".join(f"{row[1]} {row[2]}" for row in declared) == columns, table
    assert min(rows(path, "SELECT id FROM STRING_IDS")) == (2 << 28,)
    assert ("SCHEMA_VERSION", "1.0.2") in rows(path, "SELECT * FROM META_DATA")
    for name, header in (
        ("memory_record.csv", RECORD_HEADER),
        ("operator_memory.csv", OPERATOR_HEADER),
        ("npu_module_mem.csv", MODULE_HEADER),
        ("static_op_mem.csv", STATIC_HEADER),
    ):
        with (output / name).open(newline="") as file:
            assert tuple(next(csv.reader(file))) == header
    info = json.loads((output.parent / "profiler_info_0.json").read_text())
    assert info["rank_id"] == 0


def reimported(connection: duckdb.DuckDBPyConnection, out: Path, form: str) -> list[str]:
    """Reads all folders again; the remarks."""
    remarks: list[str] = []
    for output in outputs(out):
        for path in output.glob("*.csv" if form == "db" else "*.db"):
            path.unlink()
    for found in search([str(out)]).found:
        [recording] = found.format.open(found.files)
        assert recording.facts.rank is not None
        store_parts(connection, recording, Identity(SESSION, 0, recording.facts.rank))
        remarks += recording.closing().remarks
    return remarks


@pytest.mark.parametrize("form", ["db", "csv"])
def test_a_gpus_log_gives_the_same_curves_when_it_is_read_again(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    path = cuda_database(tmp_path / "r.duckdb", [training(), training(1, device="cuda:1")])
    with connect(path) as queries:
        told = [tuple(row.values()) for row in queries.sql(CURVES).to_pylist()]
    exported(path, tmp_path / "out")
    reimported(database, tmp_path / "out", form)
    assert database.execute(CURVES).fetchall() == told
    assert {row[1] for row in told} == {0, 1}


@pytest.mark.parametrize("form", ["db", "csv"])
def test_a_log_on_cpu_gives_the_same_curves_and_blocks_when_it_is_read_again(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    log = RankLog(rank=3)
    for number in range(4):
        log.alloc(f"b{number}", 1024 << number, at=1000 * number + 1000, operator="aten::mm")
    log.free("b1", at=6000)
    log.free("b0", at=7000)
    path = tmp_path / "r.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    exported(path, tmp_path / "out")
    remarks = reimported(database, tmp_path / "out", form)
    assert remarks == []
    told = "SELECT totalAllocated, deviceId FROM mindstudio.MEMORY_RECORD ORDER BY timestamp, component"
    with connect(path) as queries:
        expected = [(row["totalAllocated"], 3) for row in queries.sql(told).to_pylist()]
    assert database.execute(told).fetchall() == expected
    lives = "SELECT size_bytes, allocated_ns, freed_ns, operator FROM allocation_life ORDER BY allocation_id"
    assert database.execute(lives).fetchall() == [
        (1024, BASE_NS + 1000, BASE_NS + 7000, "aten::mm"),
        (2048, BASE_NS + 2000, BASE_NS + 6000, "aten::mm"),
        (4096, BASE_NS + 3000, None, "aten::mm"),
        (8192, BASE_NS + 4000, None, "aten::mm"),
    ]


def a_gpu_and_a_cpu(rank: int, device: str) -> RankLog:
    log = RankLog(rank=rank)
    log.alloc("batch", 100, at=1_000, operator="aten::empty")
    log.alloc("weight", 4096, at=2_000, device=device, operator="aten::mm")
    log.alloc("more", 50, at=3_000, operator="aten::empty")
    log.free("batch", at=4_000)
    return log


@pytest.mark.parametrize(
    ("rank", "device", "numbers"),
    [(0, "cuda:0", {"npu:0": 4096, "npu:1": 150}), (1, "cuda:0", {"npu:0": 4096, "npu:1": 150}),
     (2, "npu:2", {"npu:2": 4096, "npu:3": 150})],
)  # fmt: skip
@pytest.mark.parametrize("form", ["db", "csv"])
def test_host_memory_beside_an_accelerator_is_a_device_of_its_own(
    tmp_path: Path,
    database: duckdb.DuckDBPyConnection,
    form: str,
    rank: int,
    device: str,
    numbers: dict[str, int],
) -> None:
    path = tmp_path / "r.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [a_gpu_and_a_cpu(rank, device)])
        pinned = {"session_id": SESSION, "attempt": 0, "rank": rank, "device": "pinned"}
        sample = {"component": "pinned_host", "seq": 1, "time_ns": BASE_NS + 1, "reserved_bytes": 77}
        store_rows(connection, "component_sample", [pinned | sample])
    written = exported(path, tmp_path / "out")
    accelerator, host = (name.replace("npu", "NPU") for name in numbers)
    assert written.remarks[:2] == [
        f"host memory is shown as a device of its own: cpu of rank {rank} as {host}",
        "MindStudio Insight shows one device of each rank; the files have all of them",
    ]
    [output] = outputs(tmp_path / "out")
    stored = output / f"ascend_pytorch_profiler_{rank}.db"
    placed = [int(name[-1]) for name in (accelerator, host)]
    assert rows(stored, "SELECT rankId, deviceId FROM RANK_DEVICE_MAP") == [(rank, n) for n in placed]
    assert rows(stored, "SELECT name FROM NPU_INFO ORDER BY rowid") == [(device,), ("cpu",)]
    modules = (
        "SELECT deviceId FROM NPU_MODULE_MEM AS n JOIN ENUM_MODULE ON id = moduleId WHERE totalReserved = 77"
    )
    assert rows(stored, modules) == [(placed[1],)]
    reimported(database, tmp_path / "out", form)
    peaks = "SELECT device, peak_requested_bytes FROM peak_by_rank ORDER BY device"
    assert dict(database.execute(peaks).fetchall()) == numbers


def test_pinned_host_memory_is_left_out_and_said(tmp_path: Path) -> None:
    log = a_gpu_and_a_cpu(0, "cuda:0")
    log.alloc("staging", 64, at=5_000, device="pinned")
    alone = RankLog(rank=0)
    alone.alloc("staging", 64, at=5_000, device="pinned")
    for name, logs in (("both", log), ("alone", alone)):
        with empty_database(str(tmp_path / f"{name}.duckdb")) as connection:
            store_logs(connection, [logs])
    written = exported(tmp_path / "both.duckdb", tmp_path / "out")
    assert any(text.endswith("are left out: MindStudio shows devices") for text in written.remarks)
    with pytest.raises(RankmemError, match="has pinned host memory alone"):
        exported(tmp_path / "alone.duckdb", tmp_path / "nothing")


def test_a_range_has_the_records_of_the_whole_that_lie_in_it(tmp_path: Path) -> None:
    story = a_story()
    path = of_story(story, tmp_path)
    begin, end = story.records[6][1], story.records[12][1]
    exported(path, tmp_path / "out", from_ns=begin, until_ns=end)
    [output] = outputs(tmp_path / "out")
    whole = tables(tmp_path / "in" / "ascend_pytorch_profiler_0.db", "MEMORY_RECORD", "component")
    found = tables(output / "ascend_pytorch_profiler_0.db", "MEMORY_RECORD", "component")
    inside = [row for row in whole if begin <= row[1] <= end]
    # The stream of a sum is the last one before, which may lie outside.
    assert [row[:5] for row in found] == [row[:5] for row in inside]
    assert len(found) > 6


def test_totals_kept_on_disk_take_their_room_before_they_are_written(tmp_path: Path) -> None:
    """A write into a hole of a mapped file on a full disk would be a SIGBUS, not an error."""
    kept = TotalsAt(tmp_path, 5, 100_004)
    assert os.fstat(kept._file.fileno()).st_blocks * 512 >= 100_000 * 3 * 8
    kept.put(np.array([5, 7]), np.array([[1, 2, 3], [4, 5, 6]]))
    assert (kept.at(7), kept.at(4), kept.at(None)) == ((4, 5, 6), (None,) * 3, (None,) * 3)
