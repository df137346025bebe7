"""A profile of someone else's job: for every kernel the reader's answer equals PyProf's own.

The recording lies outside of the project, at ../shared/recordings; without it these tests are skipped.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings" / "nvprof"
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings/nvprof"),
]
DIRECTION = {"fprop": "forward", "bprop": "backward"}


@pytest.fixture(scope="module")
def tables() -> dict[str, list[dict[str, Any]]]:
    """The rows of each table."""
    [recording] = FORMATS["nvprof"].open([FOLDER / "lstm_pyprof.sql"])
    found: dict[str, list[pa.RecordBatch]] = {}
    for part in recording.parts(Identity("S", 0, 0)):
        for table, rows in part.rows:
            found.setdefault(table, []).append(rows)
    return {table: pa.Table.from_batches(batches).to_pylist() for table, batches in found.items()}


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    """PyProf's own, one a kernel."""
    lines = (FOLDER / "lstm_pyprof.dict").read_text(encoding="utf-8").splitlines()
    return [ast.literal_eval(line) for line in lines]


def listed(text: str | None) -> list[Any]:
    """A list column's value."""
    return json.loads(text) if text else []


def test_every_kernel_is_there(tables: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    assert len(tables["kernel_launch"]) == len(answers) == 160


@pytest.mark.parametrize(
    ("theirs", "column"),
    [
        ("layer", "layers"),
        ("trace", "call_sites"),
        ("reprMarkers", "representations"),
        ("marker", "markers"),
        ("seqMarker", "sequence_markers"),
        ("seqId", "sequence_ids"),
        ("altSeqId", "alternative_sequence_ids"),
        ("mod", "operator_modules"),
        ("op", "operators"),
    ],
)
def test_lists_equal_pyprofs(
    tables: dict[str, Any], answers: list[dict[str, Any]], theirs: str, column: str
) -> None:
    assert [listed(row[column]) for row in tables["kernel_launch"]] == [answer[theirs] for answer in answers]


def test_figures_and_direction_equal_pyprofs(tables: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    rows = tables["kernel_launch"]
    ours = [
        (
            row["short_name"],
            row["ended_ns"] - row["started_ns"],
            row["direction"],
            row["sub_sequence"],
            row["thread_id"],
            row["device"],
            row["stream"],
            tuple(map(int, row["grid"].split(","))),
            tuple(map(int, row["block"].split(","))),
        )
        for row in rows
    ]
    assert ours == [
        (
            answer["kShortName"],
            answer["kDuration"],
            DIRECTION[answer["dir"]],
            answer["subSeqId"],
            answer["tid"],
            f"cuda:{answer['device']}",
            answer["stream"],
            answer["grid"],
            answer["block"],
        )
        for answer in answers
    ]


def test_names_equal_pyprofs_where_its_demangler_resolved_them(
    tables: dict[str, Any], answers: list[dict[str, Any]]
) -> None:
    """An older C++ runtime takes the wrong one of two substitutions in 25 names, as detail<float, ...>."""
    pairs = [
        (row["kernel"], answer["kLongName"])
        for row, answer in zip(tables["kernel_launch"], answers, strict=True)
    ]
    differing = [(ours, theirs) for ours, theirs in pairs if ours != theirs]
    assert len(differing) in (0, 25)
    assert all(ours.split("<")[0] == theirs.split("<")[0] for ours, theirs in differing)


def test_every_pair_of_markers_is_a_range(tables: dict[str, Any]) -> None:
    assert len(tables["marker"]) == 683
    assert {row["kind"] for row in tables["marker"]} == {"nvtx"}
    assert all(row["ended_ns"] >= row["started_ns"] for row in tables["marker"])
