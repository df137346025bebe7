"""A training that we profile ourselves: what torch.profiler says of it is what its trace is imported as."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity

STEPS = 2
SCRIPT = Path(__file__).resolve().parents[1] / "support" / "profiled_training.py"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a small model on CPU, with stacks; in a process of its own, as torch 2.13's tracer of
    Python frames dies in one that has other threads."""
    path = tmp_path_factory.mktemp("kineto") / "trace.json"
    subprocess.run([sys.executable, str(SCRIPT), str(path), str(STEPS)], check=True, timeout=120)
    return path


@pytest.fixture(scope="module")
def tables(trace: Path) -> dict[str, list[dict[str, Any]]]:
    """What it is imported as."""
    [recording] = FORMATS["kineto"].open([trace])
    found: dict[str, list[pa.RecordBatch]] = {}
    for part in recording.parts(Identity("S", 0, 0)):
        for table, rows in part.rows:
            found.setdefault(table, []).append(rows)
    assert recording.closing().unexplained_bytes == 0
    return {table: pa.Table.from_batches(batches).to_pylist() for table, batches in found.items()}


def test_every_event_has_the_profilers_bytes_and_total(trace: Path, tables: dict[str, Any]) -> None:
    whole = json.loads(trace.read_text(encoding="utf-8"))
    told = sorted((e for e in whole["traceEvents"] if e["name"] == "[memory]"), key=lambda e: e["ts"])
    assert [row["requested_bytes"] for row in tables["memory_event"]] == [
        e["args"]["Total Allocated"] for e in told
    ]
    assert [row["size_bytes"] for row in tables["memory_event"]] == [abs(e["args"]["Bytes"]) for e in told]


def test_backward_is_led_to_its_forward_call(tables: dict[str, Any]) -> None:
    calls = {call["call_id"]: call for call in tables["operator_call"]}
    linked = [call for call in calls.values() if call["forward_call_id"] is not None]
    forward = {calls[call["forward_call_id"]]["operator"] for call in linked}
    assert {"aten::linear", "aten::relu", "aten::mean"} & forward
    assert {call["phase"] for call in linked} == {"backward"}
    for call in linked:
        assert calls[call["forward_call_id"]]["started_ns"] < call["started_ns"]
        assert calls[call["forward_call_id"]]["phase"] == "forward"
    of_mm = [calls[c["forward_call_id"]]["operator"] for c in linked if c["operator"] == "aten::mm"]
    assert of_mm
    assert set(of_mm) <= {"aten::linear", "aten::addmm", "aten::mm"}


def test_annotations_steps_and_phases_are_kept(tables: dict[str, Any]) -> None:
    assert "my forward" in {row["name"] for row in tables["marker"]}
    assert len(tables["step"]) == STEPS
    operators = {row["operator"]: row["annotation"] for row in tables["allocation_record"]}
    assert operators["aten::relu"] == "my forward"
    assert "optimizer" in {call["phase"] for call in tables["operator_call"]}


def test_stacks_name_this_file(tables: dict[str, Any]) -> None:
    stack_of = {call["operator"]: call["stack_id"] for call in tables["operator_call"]}
    frames = [row for row in tables["stack_frame"] if row["stack_id"] == stack_of["aten::square"]]
    assert any(row["file_path"].endswith(SCRIPT.name) for row in frames), frames
