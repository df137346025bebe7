"""A lake answers as the database does that was imported into it: every table, view, macro, query, page route.

What a lake is cut into must not show, so its parts are small here: two groups of hosts, many segments. Long
tests do the same with the recordings outside of the project, at ../shared/recordings.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from import_read import imported
from lake_checks import differences, num_rows, page_differences, with_hashes
from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "recordings"
KINDS = {
    "kineto": "kineto/mi300_sglang_rank0.json.gz",
    "torch_snapshot": "torch_snapshot/complete_small.pickle",
    "nvprof": "nvprof",
    "ascend": "ascend/text",
    "memscope": "ascend/memscope/memscope_dump_20250428113810.csv",
    "nsys": "nsys",
}
"""A recording for each importer."""
PART_ROWS = 60


class Pair(NamedTuple):
    """A database, with hashes for stacks, and the lake that the original was imported into."""

    file: Path
    lake: str


def pair(database: Path, part_rows: int) -> Pair:
    lake = database.with_suffix(".lake")
    import_database(database, str(lake), part_rows=part_rows)
    return Pair(with_hashes(database, database.with_suffix(".hashed")), f"lake:{lake}")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(lake_story(tmp_path_factory.mktemp("lake") / "story.duckdb"), PART_ROWS)


def test_the_lake_is_cut_by_hosts_and_by_time(story: Pair) -> None:
    """Otherwise the tests below compare less than they say."""
    files = read_catalog(LakeFiles(story.lake)).of_session(STORY)
    events = [file for file in files if file.table_name == "memory_event"]
    assert {file.hosts for file in events} == {0, 1}
    assert len({file.segment for file in events}) >= 4
    assert len({file.segment for file in files if file.table_name == "allocation_record"}) >= 4


def test_every_answer_is_that_of_the_database(story: Pair) -> None:
    with connect(story.file) as file, connect(story.lake) as lake:
        assert num_rows(lake) == num_rows(file) > 1000
        assert differences(file, lake, [STORY], ("category",)) == []


def test_every_route_of_the_page_answers_as_over_the_database(story: Pair) -> None:
    assert page_differences(story.file, story.lake, JOB) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("session", [STORY, JOB])
def test_every_answer_by_every_grouping_is_that_of_the_database(story: Pair, session: str) -> None:
    with connect(story.file) as file, connect(story.lake) as lake:
        assert differences(file, lake, [session]) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.recordings
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs ../shared/recordings")
@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_answers_from_a_lake_as_from_a_database(kind: str, tmp_path: Path) -> None:
    database = tmp_path / "recorded.duckdb"
    imported(database, RECORDINGS / KINDS[kind])
    both = pair(database, PART_ROWS)
    with connect(both.file) as file, connect(both.lake) as lake:
        assert num_rows(lake) == num_rows(file)
        sessions = file.sessions()["session_id"].to_pylist()[:1]
        assert differences(file, lake, sessions, ("category", "operator", "line", "stream", "host")) == []
    assert page_differences(both.file, both.lake, sessions[0]) == []
