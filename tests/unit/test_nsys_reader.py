"""Nsight Systems exports that we make ourselves: ranges, kernels and memory events of several processes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rankmem_agent.readers.nsys import NsysReader
from rankmem_agent.readers.recording import Closing, Identity, Probe
from rankmem_protos.errors import RankmemError

START_NS = 1_700_000_000_000_000_000
MACHINE = 1 << 48
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (
    globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, uuid TEXT);
CREATE TABLE NVTX_EVENTS (
    start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER,
    blockZ INTEGER);
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (
    start INTEGER, globalPid INTEGER, deviceId INTEGER, contextId INTEGER, address INTEGER, pc INTEGER,
    bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER, name TEXT, correlationId INTEGER,
    streamId INTEGER);
"""
MARKER = "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [{'name': '', 'type': 'tensor'}]}"


def pid(process: int) -> int:
    """globalPid."""
    return MACHINE | process << 24


def tid(process: int, thread: int) -> int:
    """globalTid."""
    return pid(process) | thread


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Two processes: 10 allocates within ranges and runs a kernel, 11 only allocates."""
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (START_NS,))
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 1, 'node7')")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'A100', 1000000, 'uuid-0')")
        strings = [(1, "void gemm<float>(int)"), (2, "AddmmBackward, seq = 7"), (3, "layer:decoder")]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings)
        ranges = [
            (100, 900, 59, None, tid(10, 10), 3),
            (200, 600, 59, MARKER, tid(10, 10), None),
            (300, 500, 59, "addmm, seq = 7", tid(10, 10), None),
            (100, 900, 59, None, tid(10, 12), 2),
            (100, None, 34, "a mark", tid(10, 10), None),
        ]
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", ranges)
        calls = [
            (310, 320, tid(10, 10), 1),
            (330, 340, tid(10, 10), 2),
            (700, 710, tid(10, 10), 3),
            (400, 410, tid(10, 12), 4),
            (310, 320, tid(11, 11), 1),
        ]
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", calls)
        kernels = [
            (350, 380, 0, 7, 2, pid(10), 1, 2, 1, 1, 64, 1, 1),
            (420, 450, 0, 7, 4, pid(10), 1, 2, 1, 1, 64, 1, 1),
        ]
        database.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 13)})", kernels
        )
        events = [
            (315, pid(10), 0, 1, 4096, 0, 1000, 2, 0, None, 1, None),
            (705, pid(10), 0, 1, 8192, 0, 500, 2, 0, None, 3, None),
            (706, pid(10), 0, 1, 4096, 0, 1000, 2, 1, None, None, None),
            (707, pid(10), 0, 1, 70000, 0, 64, 1, 0, None, None, None),
            (708, pid(10), 0, 1, 12288, 0, 300, 2, 1, None, None, None),
            (315, pid(11), 0, 1, 4096, 0, 30, 2, 0, None, 1, None),
        ]
        database.executemany(
            f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES ({', '.join('?' * 12)})", events
        )
    database.close()
    return path


def read(path: Path, rank: int = 0) -> tuple[dict[str, list[dict[str, Any]]], Closing]:
    """A rank's rows by table, and its closing."""
    recording = NsysReader().open([path])[rank]
    found: dict[str, list[pa.RecordBatch]] = {}
    for part in recording.parts(Identity("S", 0, rank)):
        for table, rows in part.rows:
            found.setdefault(table, []).append(rows)
    tables = {table: pa.Table.from_batches(batches).to_pylist() for table, batches in found.items()}
    return tables, recording.closing()


def test_each_process_is_a_rank_on_the_host(export: Path) -> None:
    facts = [recording.facts for recording in NsysReader().open([export])]
    assert [(fact.rank, fact.pid, fact.host_name) for fact in facts] == [(0, 10, "node7"), (1, 11, "node7")]


def test_it_is_told_by_its_tables(export: Path) -> None:
    tables = frozenset({"StringIds", "CUDA_GPU_MEMORY_USAGE_EVENTS"})
    assert NsysReader().recognises(Probe(path=export, head=b"", sqlite_tables=tables))
    assert not NsysReader().recognises(Probe(path=export, head=b"", sqlite_tables=frozenset({"StringIds"})))


def test_memory_events_count_in_utc_and_by_device(export: Path) -> None:
    tables, closing = read(export)
    rows = [
        (row["device"], row["time_ns"] - START_NS, row["action"], row["size_bytes"], row["requested_bytes"])
        for row in tables["memory_event"]
    ]
    assert rows == [
        ("cuda:0", 315, "alloc", 1000, 1000),
        ("cuda:0", 705, "alloc", 500, 1500),
        ("cuda:0", 706, "free_completed", 1000, 500),
        ("pinned", 707, "alloc", 64, 64),
        ("cuda:0", 708, "free_completed", 300, 500),
    ]
    assert {row["component"] for row in tables["memory_event"]} == {"app"}
    assert closing.events == 5
    assert "1 frees are of memory older" in closing.remarks[0]
    [other] = read(export, 1)[0]["memory_event"]
    assert (other["size_bytes"], other["rank"]) == (30, 1)


def test_an_allocation_has_the_operator_around_its_call(export: Path) -> None:
    tables, _ = read(export)
    operators = {row["size_bytes"]: row["operator"] for row in tables["allocation_record"]}
    assert operators == {1000: "linear", 500: None, 64: None}
    [call] = tables["operator_call"]
    assert (call["operator"], call["phase"], call["allocated_bytes"]) == ("linear", "forward", 1000)
    assert (call["started_ns"] - START_NS, call["ended_ns"] - START_NS) == (200, 600)


def test_kernels_have_what_pyprofs_rule_says(export: Path) -> None:
    forward, backward = read(export)[0]["kernel_launch"]
    assert (forward["operator"], forward["operator_module"]) == ("linear", "torch.nn.functional")
    assert (forward["layer"], forward["direction"]) == ("decoder", "forward")
    assert json.loads(forward["sequence_ids"]) == [7]
    assert (forward["launched_ns"] - START_NS, forward["thread_id"], forward["process_id"]) == (330, 10, 10)
    assert (backward["direction"], backward["operator"], backward["thread_id"]) == ("backward", "Addmm", 12)
    assert forward["short_name"] == "gemm"


def test_ranges_with_an_end_are_markers(export: Path) -> None:
    rows = read(export)[0]["marker"]
    assert [(row["name"], row["depth"]) for row in rows if row["thread"] == 0] == [
        ("layer:decoder", 0),
        (MARKER, 1),
        ("addmm, seq = 7", 2),
    ]


def test_tables_that_the_exporter_left_out_are_not_needed(export: Path) -> None:
    with sqlite3.connect(export) as database:
        for table in (
            "NVTX_EVENTS",
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "TARGET_INFO_GPU",
            "TARGET_INFO_SYSTEM_ENV",
        ):
            database.execute(f"DROP TABLE {table}")
        database.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")
    database.close()
    tables, closing = read(export)
    assert [row["launched_ns"] for row in tables["kernel_launch"]] == [None, None]
    assert tables["memory_event"][0]["time_ns"] == 315
    assert "does not say when it began" in closing.remarks[0]


def test_an_export_with_neither_kernels_nor_allocations_says_how_to_record_them(export: Path) -> None:
    with sqlite3.connect(export) as database:
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
        database.execute("DELETE FROM CUDA_GPU_MEMORY_USAGE_EVENTS")
    database.close()
    with pytest.raises(RankmemError, match="neither kernels nor allocations") as caught:
        NsysReader().open([export])
    assert "--cuda-memory-usage=true" in caught.value.hint


@pytest.mark.parametrize("value", ["'nonsense'", "NULL", "x'00'", "1e300", "9223372036854775807"])
def test_values_of_another_type_are_the_recordings_fault(export: Path, value: str) -> None:
    with sqlite3.connect(export) as database:
        database.execute(f"UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET bytes = {value}, address = {value}")
    database.close()
    with pytest.raises(RankmemError, match=r"report\.sqlite"):
        read(export)
