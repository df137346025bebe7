"""A lake in a real object store that fails, delays, cuts bodies or overwrites: the right answer, or none.

Between SeaweedFS and rankmem stands a proxy that does the harm. Whatever is asked meanwhile is answered as
from the database, or fails and names the lake; afterwards everything is as it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from faulty_store import Fault, FaultyStore, faulty_store
from lake_checks import Pair, num_rows, with_hashes
from lake_serving import Log, check_rows, recorded_logs, send, serving
from lake_story import JOB, STORY, lake_story
from page_server import served_page
from rankmem_aggregator import connect
from rankmem_aggregator.lake import files as lake_files
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError
from seaweed import BUCKET, needs_weed, object_store, reached_at

pytestmark = needs_weed

QUESTIONS: Final[dict[str, Callable[[Queries], pa.Table]]] = {
    "peak": lambda q: q.peak(STORY),
    "job-peak": lambda q: q.job_peak(STORY),
    "ops": lambda q: q.ops(STORY),
}
PATHS: Final = ("overview", "sessions")
PART_ROWS: Final = 60
NAMED: Final = (Code.INVALID, Code.UNAVAILABLE, Code.NOT_FOUND, Code.EXHAUSTED)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    """A bucket behind a proxy, with the environment that reaches the proxy."""
    with (
        object_store(tmp_path_factory.mktemp("weed")) as (address, files),
        faulty_store(address, files) as (url, proxy),
        reached_at(url),
    ):
        yield proxy


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, store: FaultyStore) -> Pair:
    """A database, and its lake in the store."""
    database = lake_story(tmp_path_factory.mktemp("story") / "story.duckdb")
    lake = f"s3://{BUCKET}/story"
    import_database(database, lake, part_rows=PART_ROWS)
    return Pair(with_hashes(database, database.with_suffix(".hashed")), lake)


@pytest.fixture(scope="module")
def expected(story: Pair) -> dict[str, pa.Table]:
    with connect(story.file) as file:
        return {name: ask(file) for name, ask in QUESTIONS.items()}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gives the store up after a second, not after 30."""
    monkeypatch.setitem(lake_files.READING, "retry_timeout", "1s")


def outcomes(opened: Callable[[], Queries], questions: Any = QUESTIONS) -> dict[str, pa.Table | RankmemError]:
    """What each question gives, over a connection of its own: rows, or an error."""
    found: dict[str, pa.Table | RankmemError] = {}
    for name, ask in questions.items():
        try:
            with opened() as queries:
                found[name] = ask(queries)
        except RankmemError as exc:
            found[name] = exc
    return found


def check_outcomes(
    found: dict[str, pa.Table | RankmemError], expected: dict[str, pa.Table], place: str
) -> None:
    """Each is the right answer or an error that names the place."""
    for name, answer in found.items():
        if isinstance(answer, RankmemError):
            assert answer.code in NAMED, answer
            assert place in answer.message, answer
        else:
            assert answer.equals(expected[name], check_metadata=True), name


FAULTS: Final[list[Any]] = [
    ("fails", 3),
    ("short", 1),
    ("breaks off", 1),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (("fails", 1), ("short", 3), ("slow", 1))),
]


@pytest.mark.parametrize(("fault", "every"), FAULTS)
def test_a_question_has_the_right_answer_or_names_the_lake(
    store: FaultyStore, story: Pair, expected: dict[str, pa.Table], impatient: None, fault: Fault, every: int
) -> None:
    with store.faulty(fault, every=every):
        found = outcomes(lambda: connect(story.lake))
    print(fault, every, {k: (v if isinstance(v, RankmemError) else "rows") for k, v in found.items()})
    check_outcomes(found, expected, story.lake)
    if fault == "slow":
        assert not any(isinstance(answer, RankmemError) for answer in found.values())
    assert outcomes(lambda: connect(story.lake)) == expected
