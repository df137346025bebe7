"""Skyline's report: its six tables to the letter, and the meaning that its own reader takes from them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constructed import BASE_NS, SESSION
from export_logs import database, training
from rankmem_aggregator import connect
from rankmem_aggregator.exports.contract import ExportResult
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.query.queries import Queries

COLUMNS = {
    "weight_entries": ["id INTEGER", "name TEXT!", "size_bytes INTEGER!", "grad_size_bytes INTEGER!"],
    "activation_entries": ["id INTEGER", "operation_name TEXT!", "size_bytes INTEGER!"],
    "entry_types": ["entry_type INTEGER", "name TEXT!"],
    "stack_correlation": ["correlation_id INTEGER", "entry_id INTEGER!", "entry_type INTEGER!"],
    "stack_frames": [
        "correlation_id INTEGER!", "ordering INTEGER!", "file_path TEXT!", "line_number INTEGER!",
    ],
    "misc_sizes": ["key TEXT", "size_bytes INT!"],
}  # fmt: skip
KEYS = {
    "weight_entries": ["id"],
    "activation_entries": ["id"],
    "entry_types": ["entry_type"],
    "stack_correlation": ["correlation_id"],
    "stack_frames": ["correlation_id", "ordering"],
    "misc_sizes": ["key"],
}
ENTRIES = """
SELECT e.{name}, e.size_bytes, f.file_path, f.line_number
FROM {table} AS e
LEFT JOIN stack_correlation AS c ON c.entry_id = e.id AND c.entry_type = {kind}
LEFT JOIN stack_frames AS f ON f.correlation_id = c.correlation_id AND f.ordering = 0
ORDER BY e.id
"""


def weight(name: str, size: int, stack: int | None, rank: int = 0) -> dict[str, Any]:
    whose = {"session_id": SESSION, "attempt": 0, "rank": rank}
    return {**whose, "name": name, "size_bytes": size, "grad_size_bytes": size, "stack_id": stack}


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    path = tmp_path_factory.mktemp("skyline") / "r.duckdb"
    weights = [
        weight("layers.0.weight", 700, 2),
        weight("layers.0.bias", 8, None),
        weight("other", 9, 1, rank=1),
    ]
    database(path, [training(), training(1)], weight=weights)
    with connect(path) as opened:
        yield opened


OPENED: list[sqlite3.Connection] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def opened_report(path: Path) -> sqlite3.Connection:
    OPENED.append(sqlite3.connect(path))
    return OPENED[-1]


def report(queries: Queries, out: Path, **asked: Any) -> tuple[sqlite3.Connection, ExportResult]:
    written = export(queries, "skyline", out, force=True, **asked)
    return opened_report(out), written


def entries(database: sqlite3.Connection, table: str, name: str, kind: int) -> list[tuple[Any, ...]]:
    return database.execute(ENTRIES.format(table=table, name=name, kind=kind)).fetchall()


def test_the_tables_are_skylines_to_the_letter(queries: Queries, tmp_path: Path) -> None:
    database, _ = report(queries, tmp_path / "r.sqlite", ranks=[0])
    names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert sorted(names) == sorted(COLUMNS)
    for table, columns in COLUMNS.items():
        told = database.execute(f"PRAGMA table_info({table})").fetchall()
        assert [f"{name} {kind}{'!' * notnull}" for _, name, kind, notnull, _, _ in told] == columns
        assert [name for _, name, _, _, _, key in sorted(told, key=lambda row: row[5]) if key] == KEYS[table]
    assert database.execute("PRAGMA user_version").fetchall() == [(1,)]
    unique = {
        tuple(column for _, _, column in database.execute(f"PRAGMA index_info({row[1]})")): row[1]
        for row in database.execute("PRAGMA index_list(stack_correlation)")
        if row[2]
    }
    assert unique["entry_type", "entry_id"] == "entry_type_and_id"
    assert ("correlation_id", "entry_id") in unique
    assert database.execute("SELECT * FROM entry_types").fetchall() == [(1, "Weight"), (2, "Activation")]


def test_weights_have_their_sizes_and_the_line_of_the_project_that_made_them(
    queries: Queries, tmp_path: Path
) -> None:
    database, _ = report(queries, tmp_path / "r.sqlite", ranks=[0])
    assert entries(database, "weight_entries", "name", 1) == [
        ("layers.0.bias", 8, None, None),
        ("layers.0.weight", 700, "model.py", 7),
    ]
    assert database.execute(
        "SELECT DISTINCT grad_size_bytes = size_bytes FROM weight_entries"
    ).fetchall() == [(1,)]


def test_activations_are_those_of_the_step_that_stood_highest(queries: Queries, tmp_path: Path) -> None:
    database, written = report(queries, tmp_path / "r.sqlite", ranks=[0])
    assert written.remarks == ["rank 0: step 1, the highest of 2"]
    assert entries(database, "activation_entries", "operation_name", 2) == [("aten::mm", 1000, "model.py", 7)]
    peak = max(event["requested_bytes"] for event in training().log.events)
    assert database.execute("SELECT * FROM misc_sizes").fetchall() == [("peak_usage_bytes", peak)]


def test_frames_outside_of_the_project_are_left_out_and_the_rest_counted_anew(
    queries: Queries, tmp_path: Path
) -> None:
    database, _ = report(queries, tmp_path / "r.sqlite", ranks=[0])
    rows = database.execute(
        "SELECT ordering, file_path, line_number FROM stack_frames "
        "JOIN stack_correlation USING (correlation_id) WHERE entry_type = 2 ORDER BY ordering"
    ).fetchall()
    assert rows == [(0, "model.py", 7), (1, "train.py", 40)]


def test_a_range_without_a_step_counts_as_one(queries: Queries, tmp_path: Path) -> None:
    asked = {"ranks": [0], "from_ns": BASE_NS + 2_000, "until_ns": BASE_NS + 4_000}
    database, written = report(queries, tmp_path / "r.sqlite", **asked)
    assert written.remarks == ["rank 0 has no training step in the range: all of it counts as one"]
    assert len(entries(database, "activation_entries", "operation_name", 2)) == 1
    assert database.execute("SELECT size_bytes FROM misc_sizes").fetchall() == [(4700,)]


def test_what_a_recording_does_not_tell_is_said(tmp_path: Path) -> None:
    with connect(database(tmp_path / "r.duckdb", [training()])) as queries:
        _, written = report(queries, tmp_path / "r.sqlite")
    assert "no weights of rank 0 were recorded" in written.remarks


def test_each_rank_has_a_report_of_its_own(queries: Queries, tmp_path: Path) -> None:
    export(queries, "skyline", tmp_path / "all")
    one = opened_report(tmp_path / "all" / "rank-1.sqlite")
    assert one.execute("SELECT name FROM weight_entries").fetchall() == [("other",)]
