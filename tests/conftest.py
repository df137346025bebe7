"""What every test may begin with: an empty database, one a file and emptied for each test; and a store.

And what no file of tests may leave behind for the next one in the same process.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
import typer.testing

import repetitions  # noqa: F401  (loads the profile of random tests)
from constructed import clear, empty_database
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store.store import Store, open_store

# The command line is made anew from its functions each time that it is invoked, in 0.1 s; it never changes.
typer.testing._get_command = functools.cache(typer.testing._get_command)

_UNTIL_S = float(os.environ.get("RANKMEM_TESTS_UNTIL_S", "inf"))
"""Seconds since 1970 after which no test begins: .ci/run has a limit, and a slow machine may reach it."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """pytest-rerunfailures tells xdist's first process of a test over a socket, then asks it about the next:
    which waited 43 ms for an acknowledgement of the former (Nagle's algorithm).
    """
    reported: socket.socket | None = getattr(getattr(config, "failures_db", None), "sock", None)
    if reported is not None:
        reported.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > _UNTIL_S:
        pytest.skip("left out, since the time of this run is up (RANKMEM_TESTS_UNTIL_S)")


@pytest.fixture(scope="module", autouse=True)
def _umask_is_left_alone() -> Iterator[None]:
    """A store holds the process's umask while it is open: one that was not closed shows here."""
    before = os.umask(0o077)
    os.umask(before)
    yield
    after = os.umask(before)
    assert after == before, f"a test left the umask at {after:03o}: a store, or a database, is still open"


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
