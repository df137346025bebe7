"""Columns named _utc are UTC, wherever the aggregator runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store.store import open_store


@pytest.fixture(autouse=True)
def _far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_clients_cursor_reads_times_in_utc(tmp_path: Path) -> None:
    store = open_store(AggregatorConfig(database_path=tmp_path / "zone.duckdb"))
    try:
        with store.cursor() as cursor:
            zone = cursor.execute("SELECT current_setting('TimeZone')").fetchall()
    finally:
        store.close()
    assert zone == [("UTC",)]
