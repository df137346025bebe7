"""What several files of tests begin with: a database for views, readers and exports, one a file and emptied
for each test; and a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from constructed import clear, empty_database
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store.store import Store, open_store


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """With all tables and views; rows stay until the file's last test."""
    with empty_database() as opened:
        yield opened


@pytest.fixture
def database(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """The same without rows."""
    clear(connection)
    return connection


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty one of the test's own, closed behind it."""
    opened = open_store(AggregatorConfig(database_path=tmp_path / "store.duckdb"))
    yield opened
    opened.close()
