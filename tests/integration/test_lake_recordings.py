"""A lake answers about recordings of every format as the database does, in one process and through workers.

Small recordings of each format are in one database here, so that views are compared over all of them. Long
tests, half a minute of CPU each, ask everything about each, and about all recordings outside of the project,
at ../shared/recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from import_read import imported
from lake_checks import Pair, differences, engine_differences, lake_pair, num_rows, page_differences
from lake_clusters import joined_cluster, needs_ray, needs_spark, sail
from rankmem_aggregator import connect
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_imports.formats import FORMATS
from rankmem_protos.errors import RankmemError
from small_recordings import SMALL

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "recordings"
FOLDERS = ("ascend/db", "ascend/text", "kineto/two_ranks_no_memory")
"""Recordings of several files."""
GROUPINGS = ("category", "operator", "line", "stream", "host")
PART_ROWS = 60


def recordings() -> list[str]:
    """All that is there: files, and folders that are one recording."""
    files = [str(path.relative_to(RECORDINGS)) for path in sorted(RECORDINGS.rglob("*")) if path.is_file()]
    alone = [name for name in files if not name.startswith(FOLDERS) and not name.endswith((".md", ".dict"))]
    return [*alone, *FOLDERS]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A session of each format."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, made in SMALL.items():
        (folder / name).mkdir()
        imported(folder / "small.duckdb", made(folder / name), name=name)
    return lake_pair(folder / "small.duckdb", PART_ROWS)


@pytest.fixture(scope="module")
def sessions(small: Pair) -> dict[str, str]:
    """Their ids by format."""
    with connect(small.file) as file:
        return {row["source"]: row["session_id"] for row in file.sessions().to_pylist()}


@pytest.fixture(scope="module")
def workers(small: Pair) -> Iterator[ScatteredQueries]:
    with ScatteredQueries(small.lake, "processes:2", worth_bytes=0) as queries:
        yield queries


def test_there_is_a_recording_of_every_format(sessions: dict[str, str]) -> None:
    assert set(sessions) == set(SMALL) == set(FORMATS)


def test_every_table_and_view_over_all_formats_is_that_of_the_database(small: Pair) -> None:
    with connect(small.file) as file, connect(small.lake) as lake:
        assert num_rows(lake) == num_rows(file) > 1000
        assert differences(file, lake, []) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("source", FORMATS)
def test_every_answer_through_workers_is_that_of_the_database(
    small: Pair, sessions: dict[str, str], workers: ScatteredQueries, source: str
) -> None:
    with connect(small.file) as file:
        assert engine_differences(file, workers, sessions[source]) == []


@pytest.fixture(
    scope="module", params=[pytest.param("ray", marks=needs_ray), pytest.param("spark", marks=needs_spark)]
)
def cluster(request: pytest.FixtureRequest, small: Pair) -> Iterator[ScatteredQueries]:
    with (
        joined_cluster() if request.param == "ray" else sail() as address,
        ScatteredQueries(small.lake, address, worth_bytes=0) as queries,
    ):
        yield queries


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("source", FORMATS)
def test_every_answer_through_a_cluster_is_that_of_the_database(
    small: Pair, sessions: dict[str, str], cluster: ScatteredQueries, source: str
) -> None:
    with connect(small.file) as file:
        assert engine_differences(file, cluster, sessions[source]) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("source", FORMATS)
def test_every_route_of_the_page_answers_as_over_the_database(
    small: Pair, sessions: dict[str, str], source: str
) -> None:
    assert page_differences(small.file, small.lake, sessions[source]) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.recordings
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs ../shared/recordings")
@pytest.mark.parametrize("name", recordings())
def test_a_recording_answers_from_a_lake_as_from_a_database(name: str, tmp_path: Path) -> None:
    database = tmp_path / "recorded.duckdb"
    try:
        report = imported(database, RECORDINGS / name)
    except RankmemError as exc:  # a folder without one
        pytest.skip(str(exc))
    if not database.is_file():
        pytest.skip(f"nothing of it is imported: {report.failed}")
    both = lake_pair(database, PART_ROWS)
    with connect(both.file) as file, connect(both.lake) as lake:
        assert num_rows(lake) == num_rows(file)
        (session,) = file.sessions()["session_id"].to_pylist()
        assert differences(file, lake, [session], GROUPINGS) == []
        with ScatteredQueries(both.lake, "processes:2", worth_bytes=0) as workers:
            assert engine_differences(file, workers, session) == []
    assert page_differences(both.file, both.lake, session) == []
