"""``rankmem lake import`` is killed, or runs beside others: the lake is whole in the end, never half seen."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake.catalog import Catalog, read_catalog
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_protos.errors import RankmemError
from two_sessions import NEW, OLD, two_sessions


def start(database: Path, lake: Path) -> subprocess.Popen[bytes]:
    """The command, in a process of its own."""
    command = [sys.executable, "-m", "rankmem_cli", "lake", "import", str(database), "--lake", str(lake)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def seen(lake: Path) -> Catalog:
    try:
        return read_catalog(LakeFiles(str(lake)))
    except RankmemError:  # it has not begun
        return Catalog(-1, ())


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_killed_import_goes_on_until_the_lake_is_whole(tmp_path: Path, kills: int) -> None:
    chance = random.Random(7)
    database = lake_story(tmp_path / "story.duckdb")
    began = time.monotonic()
    import_database(database, str(tmp_path / "whole"))
    expected = seen(tmp_path / "whole").files
    lake = tmp_path / "lake"
    alone_s = 2 * (time.monotonic() - began)  # with the start of a process
    killed = 0
    for _ in range(kills):
        process = start(database, lake)
        time.sleep(chance.uniform(0.3, 1) * alone_s)
        killed += process.poll() is None
        process.kill()
        process.communicate()
        assert set(seen(lake).files) <= set(expected)
    process = start(database, lake)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert killed > 0
    assert seen(lake).files == expected
    assert check_lake(str(lake)).faults == ()


def test_imports_of_several_databases_at_once_are_all_there(tmp_path: Path) -> None:
    story = lake_story(tmp_path / "story.duckdb")
    with duckdb.connect(story) as connection:
        connection.execute("UPDATE rankmem_meta SET database_id = 'abc123'")
    two = two_sessions(tmp_path / "two.duckdb")
    lake = tmp_path / "lake"
    for process in [start(database, lake) for database in (story, two)]:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    assert check_lake(str(lake)).faults == ()
    with connect(f"lake:{lake}") as queries:
        assert set(queries.sessions()["session_id"].to_pylist()) == {JOB, STORY, OLD, NEW}


def test_of_two_imports_of_one_database_both_end_with_the_same_lake(tmp_path: Path) -> None:
    """One may be refused; then the other has written it."""
    database = lake_story(tmp_path / "story.duckdb")
    import_database(database, str(tmp_path / "whole"))
    lake = tmp_path / "lake"
    codes = []
    for process in [start(database, lake) for _ in range(2)]:
        output, _ = process.communicate(timeout=120)
        codes.append(process.returncode)
        assert process.returncode == 0 or b"another process" in output, output
    assert 0 in codes or start(database, lake).wait(120) == 0
    assert seen(lake).files == seen(tmp_path / "whole").files
    assert check_lake(str(lake)).faults == ()
