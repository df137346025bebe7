"""A database file in a lake: written once whatever happens, and the same to whoever asks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rankmem_aggregator import connect
from rankmem_aggregator.lake.import_ import import_database
from two_sessions import NEW, OLD, two_sessions


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return two_sessions(tmp_path / "two.duckdb")


def test_a_lake_answers_as_the_database_that_was_imported(database: Path, tmp_path: Path) -> None:
    done = import_database(database, str(tmp_path / "lake"))
    assert done.sessions == {OLD: "written", NEW: "written"}
    with connect(database) as file, connect(f"lake:{tmp_path / 'lake'}") as lake:
        assert lake.sessions() == file.sessions()
        for session in (OLD, NEW):
            assert lake.peak(session) == file.peak(session)
            assert lake.job_peak(session) == file.job_peak(session)
            assert lake.ops(session) == file.ops(session)


def test_importing_again_writes_nothing(database: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    import_database(database, str(lake))
    before = _state(lake)
    done = import_database(database, str(lake))
    assert done.sessions == {OLD: "already there", NEW: "already there"}
    assert (done.rows, _state(lake)) == (0, before)


def _state(lake: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(lake.rglob("*")) if path.is_file()}


def test_rows_of_a_lake_are_those_of_the_database(database: Path, tmp_path: Path) -> None:
    import_database(database, str(tmp_path / "lake"))
    statement = "SELECT * FROM allocation_record ORDER BY ALL"
    with connect(database) as file, connect(f"lake:{tmp_path / 'lake'}") as lake:
        expected: pa.Table = file.sql(statement)
        assert expected.num_rows
        assert lake.sql(statement) == expected
