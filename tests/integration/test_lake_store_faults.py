"""A lake in a real object store that fails, delays, cuts bodies or overwrites: the right answer, or none.

Between SeaweedFS and rankmem stands a proxy that does the harm. Whatever is asked meanwhile is answered as
from the database, or fails and names the lake; afterwards everything is as it should be. All but one of these
are long: each starts with some hundred requests to a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from constructed import empty_database, store_logs
from faulty_store import Fault, FaultyStore, faulty_store
from lake_checks import Pair, num_rows, with_hashes
from lake_serving import check_rows, recorded_logs, send, serving
from lake_story import STORY, story_rank
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
PATHS: Final = ("job", "steps")
ROWS: Final = "session_id"
"""In the path of each file with rows, of no other."""
PART_ROWS: Final = 100
NAMED: Final = (Code.INVALID, Code.UNAVAILABLE, Code.NOT_FOUND, Code.EXHAUSTED)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    """A bucket behind a proxy, with the environment that reaches the proxy."""
    with (
        object_store(tmp_path_factory.mktemp("weed")) as (address, _),
        faulty_store(address) as proxy,
        reached_at(proxy.url),
    ):
        yield proxy


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two ranks: a table is some requests to a store."""
    path = tmp_path_factory.mktemp("story") / "story.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [story_rank(0, 0), story_rank(0, 2)])
    return path


@pytest.fixture(scope="module")
def story(database: Path, store: FaultyStore) -> Pair:
    """The database, and its lake in the store."""
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


def outcome(ask: Callable[[], pa.Table]) -> pa.Table | RankmemError:
    """What a question gives: rows, or an error."""
    try:
        return ask()
    except RankmemError as exc:
        return exc


def outcomes(opened: Callable[[], AbstractContextManager[Queries]]) -> dict[str, pa.Table | RankmemError]:
    """What each question gives over a connection of its own."""

    def asked(ask: Callable[[Queries], pa.Table]) -> pa.Table:
        with opened() as queries:
            return ask(queries)

    return {name: outcome(partial(asked, ask)) for name, ask in QUESTIONS.items()}


def check_outcomes(
    found: dict[str, pa.Table | RankmemError], expected: dict[str, pa.Table], place: str, fault: Fault
) -> None:
    """Each is the right answer or an error that names the place; where it is only late, the answer."""
    for name, answer in found.items():
        if isinstance(answer, RankmemError) and fault != "slow":
            assert answer.code in NAMED, answer
            assert place in answer.message, answer
        else:
            assert answer == expected[name], name


def later(*case: Any) -> Any:
    """A case that is left to the long tests."""
    return pytest.param(*case, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.parametrize(
    ("fault", "every", "part"),
    [
        ("breaks off", 1, ROWS),
        later("short", 1, ROWS),
        later("fails", 3, ""),
        later("fails", 1, ""),
        later("fails", 1, ROWS),
        later("short", 1, ""),
        later("short", 3, ""),
        later("breaks off", 3, ""),
        later("slow", 1, ""),
    ],
)
def test_a_question_has_the_right_answer_or_names_the_lake(
    store: FaultyStore,
    story: Pair,
    expected: dict[str, pa.Table],
    impatient: None,
    fault: Fault,
    every: int,
    part: str,
) -> None:
    with store.faulty(fault, every=every, part=part):
        found = outcomes(lambda: connect(story.lake))
    check_outcomes(found, expected, story.lake, fault)
    assert outcomes(lambda: connect(story.lake)) == expected


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["fails", "short", "breaks off", "slow"])
def test_a_question_through_workers_has_the_right_answer_or_names_the_lake(
    store: FaultyStore, story: Pair, expected: dict[str, pa.Table], fault: Fault
) -> None:
    with ScatteredQueries(story.lake, "processes:2", worth_bytes=0) as queries:
        assert queries.peak(STORY) == expected["peak"]
        with store.faulty(fault, part=ROWS):
            found = outcomes(lambda: nullcontext(queries))
        check_outcomes(found, expected, story.lake, fault)
        assert outcomes(lambda: nullcontext(queries)) == expected


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["fails", "short", "breaks off", "slow"])
def test_a_page_shows_the_right_answer_or_names_the_lake(
    store: FaultyStore, story: Pair, impatient: None, fault: Fault
) -> None:
    with served_page(story.file) as client:
        expected = {path: client.ask(f"s/{STORY}/{path}") for path in PATHS}
    for path in PATHS:
        with served_page(story.lake) as client:
            with store.faulty(fault, part=ROWS):
                found = outcome(lambda client=client, path=path: client.ask(f"s/{STORY}/{path}"))  # type: ignore[misc]
            is_given_up = isinstance(found, RankmemError) and "took longer than" in found.message
            if not is_given_up:  # a page waits for no answer that long
                check_outcomes({path: found}, expected, story.lake, fault)
            assert client.ask(f"s/{STORY}/{path}") == expected[path]


@pytest.mark.parametrize(
    ("fault", "every", "part"),
    [
        later("forgets", 3, "lake_progress/_delta_log"),  # the commit of the session
        later("forgets", 2, "memory_event/_delta_log"),
        later("fails", 2, ""),
        later("slow", 1, ""),
    ],
)
def test_an_import_is_whole_although_the_store_is_faulty(
    store: FaultyStore, story: Pair, database: Path, fault: Fault, every: int, part: str
) -> None:
    lake = f"s3://{BUCKET}/import-{fault}-{len(part)}"
    with store.faulty(fault, every=every, part=part):
        assert set(import_database(database, lake, part_rows=PART_ROWS).sessions.values()) == {"written"}
    check_imported(lake, story)
    again = import_database(database, lake, part_rows=PART_ROWS)
    assert set(again.sessions.values()) == {"already there"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_import_into_a_store_that_is_away_fails_and_names_it_and_the_next_one_is_whole(
    store: FaultyStore, story: Pair, database: Path
) -> None:
    lake = f"s3://{BUCKET}/away"
    with store.faulty("fails", part=ROWS), pytest.raises(RankmemError, match=lake):
        import_database(database, lake, part_rows=PART_ROWS)
    assert set(import_database(database, lake, part_rows=PART_ROWS).sessions.values()) == {"written"}
    check_imported(lake, story)


def check_imported(lake: str, story: Pair) -> None:
    """A lake has every row of the database, once."""
    assert check_lake(lake).faults == ()
    with connect(lake) as queries, connect(story.file) as file:
        assert num_rows(queries) == num_rows(file)
        assert queries.job_peak(STORY) == file.job_peak(STORY)


@pytest.mark.parametrize(("fault", "every"), [later("forgets", 3), later("fails", 2), later("slow", 1)])
def test_an_aggregator_stores_each_record_once_although_the_store_is_faulty(
    store: FaultyStore, tmp_path: Path, fault: Fault, every: int
) -> None:
    lake, logs = f"s3://{BUCKET}/served-{fault}", recorded_logs(tmp_path / "logs", ranks=2, attempts=1)
    with serving(lake) as aggregator:
        with store.faulty(fault, every=every):
            send(aggregator.address, logs[:1])
        send(aggregator.address, logs[1:])
    assert check_lake(lake).faults == ()
    check_rows(lake, logs)


@pytest.mark.long
def test_a_store_that_ignores_that_a_write_is_conditional_is_refused(store: FaultyStore) -> None:
    with (
        store.faulty("careless"),
        pytest.raises(RankmemError, match="overwrites") as refused,
        serving(f"s3://{BUCKET}/careless"),
    ):
        pass
    assert refused.value.code is Code.UNSUPPORTED
