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
from rankmem_agent.readers.memscope import MemScopeReader
from rankmem_agent.readers.mindstudio import MindStudioReader
from rankmem_agent.readers.recording import Identity

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
    reader = MindStudioReader()
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
    [recording] = MemScopeReader().open([path])
    with empty_database() as connection:
        store_parts(connection, recording, Identity(SESSION, 0, 0))
        found = "SELECT time_ns, requested_bytes FROM memory_event ORDER BY seq"
        assert connection.execute(found).fetchall() == told
        assert connection.execute("SELECT count(stack_id) FROM allocation_record").fetchone() == (6,)


def test_a_memscope_dump_of_two_processes_is_two_ranks() -> None:
    path = FOLDER / "memscope" / "memscope_dump_20250428113810.csv"
    recordings = MemScopeReader().open([path])
    assert [recording.facts.pid for recording in recordings] == [2_523_738, 2_523_740]
    with empty_database() as connection:
        for rank, recording in enumerate(recordings):
            store_parts(connection, recording, Identity(SESSION, 0, rank))
        counted = connection.execute(
            "SELECT count(*) FILTER (WHERE action = 'alloc' AND device <> 'pinned'), "
            "count(*) FILTER (WHERE action = 'free_completed' AND device <> 'pinned') FROM memory_event"
        ).fetchone()
        assert counted == (241, 14)
