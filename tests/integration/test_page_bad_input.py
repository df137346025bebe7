"""Every parameter of every route out of its bounds, and sessions that are not there, pruned or older.

By the routes' own declarations, so that a new route or parameter is covered without being named. Each
question is whole but for the one parameter: what is refused is refused for it, and what is within its bounds
is answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb
import pytest

from constructed import SESSION, RankLog, empty_database, store_logs
from page_questions import Question, questions
from page_server import PageClient, Reply, served_page
from rankmem_agent.spool.layout import DeviceType
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.parameters import DEVICE_TYPE, Declared, declared, read_parameters
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_aggregator.store.schema import ALL_TABLES
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.devices import device_name
from repetitions import long_but_one_in

MS = 1_000_000
BAD_VALUES = (
    "x", "-9223372036854775809", str(2**63), "9" * 400, "1e400", "nan", "-inf", "1.5", "0x10", "1_000", " 1",
    "\0", "\ufffd", "😀", "'", "1;DROP TABLE session", "[]", "{}", "x" * 6000, "a" * 65, "host=", "pp=x/peak",
    "/0/time=99999999999999999999", "/0/kept=5:2", ",", "1,,2", ",".join(["1"] * 70),
)  # fmt: skip
TAKEN_MAX = 4
"""Of the values that a parameter takes as they are, those that are asked with."""
BAD_QUERIES = ("unknown=1", "%75nknown=1", "=1", "&&&=", f"{'n' * 6000}=1", "%00=1", "%ff=1", "rank=%ff")
WITHOUT = frozenset({"/sql"})
"""POST: the test of that route has it."""
GET_ROUTES = [route for route in ROUTES if route.path not in WITHOUT]
FIRST = ("session", "rank_info", "host_info", "memory_event", "allocation_record", "memory_bucket")
"""Tables without which there is nothing to show."""


def log_of() -> RankLog:
    """A device with segments, steps and a failure, so that every route has something to answer."""
    log = RankLog(ended=1000 * MS)
    log.segment("segment_alloc", 0x10_0000_0000, 20 << 20, at=0)
    for step in range(4):
        at = (10 + 10 * step) * MS
        log.alloc(
            f"a{step}", 1 << 20, at=at, device="cuda:0", address=0x10_0000_0000 + (step << 20), stream=0
        )
        log.step_ends(step, at=at + MS)
    log.oom(64 << 20, at=100 * MS, device_free_bytes=16 << 20, operator="aten::x", stream=0)
    log.free("a0", at=101 * MS)
    return log


def store(path: Path) -> Path:
    with empty_database(str(path)) as connection:
        store_logs(connection, [log_of()])
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("bad") / "job.duckdb")


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


@pytest.fixture(scope="module")
def whole(client: PageClient) -> dict[str, Question]:
    """A question for each route, by its path."""
    return {question.route.path: question for question in questions(client, SESSION)}


def names() -> list[str]:
    return [route.path for route in GET_ROUTES]


def reply_to(client: PageClient, question: Question, session: str = SESSION, **changes: Any) -> Reply:
    """The response to the question with these parameters instead."""
    given = {name: value for name, value in {**question.parameters, **changes}.items() if value is not None}
    path = f"/api/v1/{question.path}".replace(SESSION, session)
    return client.request("GET", f"{path}?{urlencode(given)}")


def refused(reply: Reply, why: object) -> dict[str, Any]:
    """What a refusal tells: a status of 4xx, what happened and what to do."""
    assert 400 <= reply.status < 500, (why, reply.status, reply.body[:300])
    told = reply.json()
    assert told["message"], why
    assert told["hint"], why
    assert "Traceback" not in str(told)
    return told


def accepts(each: Declared, value: str) -> bool:
    try:
        each.read(value)
    except ValueError:
        return False
    return True


def bounds_of(each: Declared) -> tuple[int, int] | None:
    """Least and most of a whole number, as its own refusal tells them."""
    try:
        each.read("x")
    except ValueError as exc:
        found = re.fullmatch(r"a whole number from (-?[\d,]+) to (-?[\d,]+)", str(exc))
        return tuple(int(text.replace(",", "")) for text in found.groups()) if found else None  # type: ignore[return-value]
    return None


def test_every_route_is_walked(whole: dict[str, Question]) -> None:
    assert set(whole) == set(names())
    assert len(whole) > 40


@pytest.mark.parametrize("kind", DeviceType)
def test_every_type_of_device_that_is_recorded_can_be_asked_about(kind: DeviceType) -> None:
    recorded = device_name(kind << 8).partition(":")[0]
    assert DEVICE_TYPE(recorded) == recorded


@pytest.mark.parametrize("route", long_but_one_in(names(), 2))
def test_a_value_that_is_not_accepted_is_refused_with_what_would_be(
    client: PageClient, whole: dict[str, Question], route: str
) -> None:
    """Refused before anything is asked: of each parameter one of them over HTTP; of what is taken, some."""
    question = whole[route]
    for place, each in enumerate(declared(question.route.parameters)):
        bad = [value for value in BAD_VALUES if not accepts(each, value)]
        for value in bad:
            given = {**question.parameters, each.name: value}
            with pytest.raises(RankmemError) as told:
                read_parameters(question.route.parameters, [(name, str(v)) for name, v in given.items()])
            assert (told.value.code, each.name in told.value.message) == (Code.INVALID, True)
            assert told.value.hint
        for value in bad[place % len(bad) :][:1]:
            reply = reply_to(client, question, **{each.name: value})
            assert reply.status == 400, (each.name, value)
            assert each.name in refused(reply, value)["message"]
        taken = [value for value in BAD_VALUES if value not in bad]
        for value in taken[place % 3 :: max(1, len(taken) // TAKEN_MAX)]:
            reply = reply_to(client, question, **{each.name: value})
            if reply.status != 200:
                refused(reply, (each.name, value))


@pytest.mark.parametrize("route", names())
def test_parameters_that_are_repeated_unknown_or_missing_are_named(
    client: PageClient, whole: dict[str, Question], route: str
) -> None:
    question = whole[route]
    known = declared(question.route.parameters)
    path = f"/api/v1/{question.path}?{urlencode(question.parameters)}&"
    for query in BAD_QUERIES:
        assert refused(client.request("GET", path + query), query)["code"] == "invalid"
    for each in known:
        twice = client.request("GET", f"/api/v1/{question.path}?{each.name}=1&{each.name}=2")
        refused(twice, each.name)
    required = [each.name for each in known if each.required]
    reply = client.request("GET", f"/api/v1/{question.path}")
    if required:
        assert required[0] in refused(reply, required)["message"]
        assert reply.status == 400


@pytest.mark.parametrize("route", long_but_one_in(names(), 3))
def test_a_number_is_taken_up_to_its_bounds_and_not_beyond(
    client: PageClient, whole: dict[str, Question], route: str
) -> None:
    question = whole[route]
    for each in declared(question.route.parameters):
        if (bounds := bounds_of(each)) is None:
            continue
        least, most = bounds
        for value in (least - 1, most + 1):
            assert reply_to(client, question, **{each.name: value}).status == 400, (each.name, value)
        for value in (least, most):
            reply = reply_to(client, question, **{each.name: value})
            if reply.status != 200:
                refused(reply, (each.name, value))


@pytest.mark.parametrize("route", names())
def test_ranges_that_are_crossed_and_ranks_that_are_not_there_are_refused(
    client: PageClient, whole: dict[str, Question], route: str
) -> None:
    question = whole[route]
    known = {each.name for each in declared(question.route.parameters)}
    if {"from", "to"} <= known:
        assert reply_to(client, question, **{"from": 9, "to": 3}).status == 400
    for absent in ({"rank": 99_999}, {"device": "cuda:9"}, {"attempt": 99}, {"ranks": "99999"}):
        if set(absent) <= known:
            reply = reply_to(client, question, **absent)
            if reply.status != 200:  # of some a range without rows is an answer
                refused(reply, absent)


@pytest.mark.parametrize("route", [each.path for each in GET_ROUTES if isinstance(each, SessionRoute)])
def test_a_session_that_is_not_there_is_refused_by_every_route(
    client: PageClient, whole: dict[str, Question], route: str
) -> None:
    for session in ("0SESSION0009", "none", "x" * 200):
        assert refused(reply_to(client, whole[route], session), session)["code"] == "not_found"


def test_a_session_that_was_pruned_meanwhile_is_refused_by_every_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are in memory, and are given no more."""
    from rankmem_aggregator.page import answering
    from rankmem_aggregator.query.local import LocalQueries

    path = store(tmp_path / "job.duckdb")
    empty_database(str(tmp_path / "empty.duckdb")).close()
    asked = LocalQueries.sql
    with served_page(path) as client, LocalQueries(tmp_path / "empty.duckdb") as after:
        whole = list(questions(client, SESSION))
        assert {reply_to(client, question).status for question in whole} == {200}
        monkeypatch.setattr(answering, "STATE_FRESH_S", 0.0)
        client.server.page.answering._states.clear()
        monkeypatch.setattr(LocalQueries, "sql", lambda own, *given: asked(after, *given))
        for question in whole:
            if isinstance(question.route, DatabaseRoute):
                continue
            assert refused(reply_to(client, question), question.path)["code"] == "not_found"


def test_every_route_answers_or_refuses_over_a_file_of_the_first_version(
    path: Path, client: PageClient, tmp_path: Path
) -> None:
    """Of tables that came later it has none: what they would tell is missing, and no route breaks."""
    older = store(tmp_path / "older.duckdb")
    with duckdb.connect(str(older)) as connection:
        kinds = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'"
        tables = [name for (name,) in connection.execute(f"{kinds} AND table_type = 'BASE TABLE'").fetchall()]
        for name in set(tables) & ALL_TABLES.keys() - {"rankmem_meta", "stack_hash", *FIRST}:
            connection.execute(f'DROP TABLE "{name}"')
        connection.execute("UPDATE rankmem_meta SET schema_version = 1")
    with served_page(older) as first:
        for question in questions(client, SESSION):
            reply = reply_to(first, question)
            if reply.status != 200:
                refused(reply, question.path)
        assert first.ask(f"s/{SESSION}/job").num_rows == 1
        held = first.ask(f"s/{SESSION}/flame", rank=0).to_pylist()[0]["bytes"]
        assert held == client.ask(f"s/{SESSION}/flame", rank=0).to_pylist()[0]["bytes"] > 0
