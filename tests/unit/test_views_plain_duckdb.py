"""The database is the interface: plain DuckDB reads it, with nothing else installed."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pytest

from guide import guide_database


def test_every_view_is_read_by_plain_duckdb_without_a_time_zone_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "guide.duckdb"
    guide_database(str(path)).close()
    monkeypatch.setitem(sys.modules, "pytz", None)
    with duckdb.connect(str(path), read_only=True) as plain:
        views = plain.execute(
            "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
        ).fetchall()
        assert ("main", "peak_by_rank") in views
        for schema, name in views:
            plain.execute(f'FROM {schema}."{name}"').fetchall()
        (instant,) = plain.execute("SELECT utc_of(1795264702000000001)").fetchone() or ()
        zoned = "SELECT table_name, column_name FROM duckdb_columns() WHERE data_type LIKE '%TIME ZONE%'"
        assert plain.execute(f"{zoned} AND NOT internal").fetchall() == []
    assert str(instant) == "2026-11-21 12:38:22"
