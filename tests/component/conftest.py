"""What several of these tests ask: a database with sessions of some seconds, and its lake of many files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lake_sessions import lake_sessions
from rankmem_aggregator import connect
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.query.queries import Queries

PART_ROWS: Final = 60
"""Three groups of hosts, and segments of some seconds."""


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lake_sessions(tmp_path_factory.mktemp("lake") / "sessions.duckdb")


@pytest.fixture(scope="session")
def lake(database: Path) -> str:
    folder = str(database.parent / "lake")
    import_database(database, folder, part_rows=PART_ROWS)
    return f"lake:{folder}"


@pytest.fixture(scope="module")
def file(database: Path) -> Iterator[Queries]:
    with connect(database) as queries:
        yield queries
