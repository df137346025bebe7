"""A lake through worker processes: no answer differs from the database file's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from constructed import BASE_NS, SECOND_NS
from lake_sessions import RESTARTED, STEADY, lake_sessions, named_questions, rows_of, view_questions
from rankmem_aggregator import connect
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.query.queries import Queries

AT_NS = BASE_NS + 2 * SECOND_NS + SECOND_NS // 3
PART_ROWS = 60
"""A lake of many files: three groups of hosts, and segments of two seconds."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lake_sessions(tmp_path_factory.mktemp("lake") / "sessions.duckdb")


@pytest.fixture(scope="module")
def lake(database: Path) -> str:
    folder = str(database.parent / "lake")
    import_database(database, folder, part_rows=PART_ROWS)
    return f"lake:{folder}"


@pytest.fixture(scope="module")
def file(database: Path) -> Iterator[Queries]:
    with connect(database) as queries:
        yield queries


@pytest.fixture(scope="module")
def scattered(lake: str) -> Iterator[ScatteredQueries]:
    with ScatteredQueries(lake, "processes:2", worth_bytes=0) as queries:
        yield queries


@pytest.mark.parametrize("session", [RESTARTED, STEADY])
def test_every_view_and_macro_answers_as_the_file(
    file: Queries, scattered: ScatteredQueries, session: str
) -> None:
    asked = {"hosts": 0, "time": 0, "none": 0}
    for name, scatter, text, parameters in view_questions(file, session, AT_NS):
        expected = rows_of(file.sql(text, parameters))
        if scatter == "hosts":
            found = scattered.by_hosts(text, parameters, session)
        elif scatter == "time":
            by = name.partition(" ")[2] if name.startswith(("group_peak", "peak_by_ranks")) else "job"
            found = scattered.by_time(text, parameters, session, by)
        else:
            found = scattered.sql(text, parameters)
        assert found is not None, name
        assert rows_of(found) == expected, name
        asked[scatter] += 1
    assert min(asked.values()) > 5


@pytest.mark.parametrize("session", [RESTARTED, STEADY])
def test_every_named_query_answers_as_the_file(
    file: Queries, scattered: ScatteredQueries, session: str
) -> None:
    for name, text, parameters in named_questions(session, AT_NS):
        assert scattered.sql(text, parameters) == file.sql(text, parameters), name
