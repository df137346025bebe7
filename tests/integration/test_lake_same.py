"""A lake answers as the database does that was imported into it: every table, view, macro, query, page route.

In full with ``make test-long``; CI asks a sixth of them.

What a lake is cut into must not show, so its parts are small here: two groups of hosts, many segments.
"""

from __future__ import annotations

import pytest

from lake_checks import Pair, differences, lake_pair, num_rows, page_differences
from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.files import LakeFiles

PART_ROWS = 60


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return lake_pair(lake_story(tmp_path_factory.mktemp("lake") / "story.duckdb"), PART_ROWS)


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
        assert differences(file, lake, [STORY], ("category",), one_in=6) == []


def test_every_route_of_the_page_answers_as_over_the_database(story: Pair) -> None:
    assert page_differences(story.file, story.lake, JOB, one_in=6) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("session", [STORY, JOB])
def test_every_answer_by_every_grouping_is_that_of_the_database(story: Pair, session: str) -> None:
    with connect(story.file) as file, connect(story.lake) as lake:
        assert differences(file, lake, [session]) == []
