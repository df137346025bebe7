"""The database that tests of views, readers and exports share: one a file of tests, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from constructed import clear, empty_database


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
