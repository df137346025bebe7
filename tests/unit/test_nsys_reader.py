"""Nsight Systems exports that we make ourselves: ranges, kernels and memory events of several processes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import made_profiles
from made_profiles import MARKER, START_NS
from rankmem_imports.formats import FORMATS
from rankmem_imports.kernels import profile as kernel_profile
from rankmem_imports.probing import Probe
from rankmem_imports.recording import Closing, Identity
from rankmem_protos.errors import RankmemError


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Two processes: 10 allocates within ranges and runs a kernel, 11 only allocates."""
    return made_profiles.export(tmp_path)


def read(path: Path, rank: int = 0) -> tuple[dict[str, list[dict[str, Any]]], Closing]:
    """A rank's rows by table, and its closing."""
    recording = FORMATS["nsys"].open([path])[rank]
    found: dict[str, list[pa.RecordBatch]] = {}
    for part in recording.parts(Identity("S", 0, rank)):
        for table, rows in part.rows:
            found.setdefault(table, []).append(rows)
    tables = {table: pa.Table.from_batches(batches).to_pylist() for table, batches in found.items()}
    return tables, recording.closing()


def test_each_process_is_a_rank_on_the_host(export: Path) -> None:
    facts = [recording.facts for recording in FORMATS["nsys"].open([export])]
    assert [(fact.rank, fact.pid, fact.host_name) for fact in facts] == [(0, 10, "node7"), (1, 11, "node7")]
    assert {fact.started_ns for fact in facts} == {START_NS}


def test_it_is_told_by_its_tables(export: Path) -> None:
    tables = frozenset({"StringIds", "CUDA_GPU_MEMORY_USAGE_EVENTS"})
    assert FORMATS["nsys"].recognises(Probe(path=export, head=b"", sqlite_tables=tables))
    assert not FORMATS["nsys"].recognises(
        Probe(path=export, head=b"", sqlite_tables=frozenset({"StringIds"}))
    )


def test_memory_events_count_in_utc_and_by_device(export: Path) -> None:
    tables, closing = read(export)
    rows = [
        (row["device"], row["time_ns"] - START_NS, row["action"], row["size_bytes"], row["requested_bytes"])
        for row in tables["memory_event"]
    ]
    assert rows == [
        ("cuda:0", 315, "alloc", 1000, 1300),
        ("cuda:0", 705, "alloc", 500, 1800),
        ("cuda:0", 706, "free_completed", 1000, 800),
        ("pinned", 707, "alloc", 64, 64),
        ("cuda:0", 708, "free_completed", 300, 500),
    ]
    [older] = [row for row in tables["allocation_record"] if row["preexisting"]]
    assert (older["size_bytes"], older["freed_ns"] - START_NS) == (300, 708)
    assert {row["component"] for row in tables["memory_event"]} == {"app"}
    assert closing.events == 5
    assert any("1 freed blocks are from before" in remark for remark in closing.remarks)
    [other] = read(export, 1)[0]["memory_event"]
    assert (other["size_bytes"], other["rank"]) == (30, 1)


def test_an_allocation_has_the_operator_around_its_call(export: Path) -> None:
    tables, _ = read(export)
    operators = {row["size_bytes"]: row["operator"] for row in tables["allocation_record"]}
    assert operators == {1000: "linear", 500: None, 64: None, 300: None}
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


def test_where_ranges_are_too_many_the_inner_ones_are_kept(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_profile, "NUMBERS_MAX", -1)
    monkeypatch.setattr(kernel_profile, "INNERMOST", 2)
    with sqlite3.connect(export) as database:
        database.execute("DELETE FROM CUDA_GPU_MEMORY_USAGE_EVENTS")
    database.close()
    tables, closing = read(export)
    assert (tables["kernel_launch"][0]["layer"], tables["kernel_launch"][0]["operator"]) == (None, "linear")
    assert any("1 kernels lie in so many ranges" in remark for remark in closing.remarks)


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
    assert any("has no start time" in remark for remark in closing.remarks)


def test_an_export_with_neither_kernels_nor_allocations_says_how_to_record_them(export: Path) -> None:
    with sqlite3.connect(export) as database:
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
        database.execute("DELETE FROM CUDA_GPU_MEMORY_USAGE_EVENTS")
    database.close()
    with pytest.raises(RankmemError, match="neither kernels nor allocations") as caught:
        FORMATS["nsys"].open([export])
    assert "--cuda-memory-usage=true" in caught.value.hint


@pytest.mark.parametrize("value", ["'nonsense'", "NULL", "x'00'", "1e300", "9223372036854775807"])
def test_values_of_another_type_are_the_recordings_fault(export: Path, value: str) -> None:
    with sqlite3.connect(export) as database:
        database.execute(f"UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET bytes = {value}, address = {value}")
    database.close()
    with pytest.raises(RankmemError, match=r"report\.sqlite"):
        read(export)
