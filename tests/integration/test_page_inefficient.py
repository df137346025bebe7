"""Blocks held in vain: a log by hand, with the calls and steps that tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from page_answers import Answers
from rankmem_aggregator.page.reading import facts_of

Row = dict[str, Any]
OFFSET = 70


def _call(call_id: int, started: int, ended: int, forward: int | None = None) -> Row:
    return {
        "session_id": SESSION,
        "attempt": 0,
        "rank": 0,
        "call_id": call_id,
        "operator": "aten::mm",
        "started_ns": BASE_NS + started,
        "ended_ns": BASE_NS + ended,
        "forward_call_id": forward,
    }


def _use(allocation_id: int, uses: int, first: int, last: int, idle: tuple[int, int] | None = None) -> Row:
    return {
        "session_id": SESSION,
        "attempt": 0,
        "rank": 2,
        "device": "npu:0",
        "allocation_id": allocation_id,
        "uses": uses,
        "first_used_ns": BASE_NS + first,
        "last_used_ns": BASE_NS + last,
        "idle_from_ns": idle and BASE_NS + idle[0],
        "idle_until_ns": idle and BASE_NS + idle[1],
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    path = str(tmp_path_factory.mktemp("page") / "vain.duckdb")
    log = RankLog(ended=1000, offset_ns=OFFSET)
    log.preexisting("older", 8, device="cuda:0")
    log.alloc("saved", 1 << 30, at=100, device="cuda:0", call_id=1, step=0, category="activation")
    log.alloc("temporary", 50, at=105, device="cuda:0", call_id=1, step=0, category="temporary")
    log.free("temporary", at=150)
    log.alloc("weight", 4, at=160, device="cuda:0", step=0, category="parameter")
    log.alloc("unlinked", 6, at=170, device="cuda:0", call_id=2, step=1, category="activation")
    log.step_ends(0, at=400)
    log.free("saved", at=500, told_later=True)
    log.step_ends(1, at=600)
    log.request_free("unlinked", at=700)
    log.free("unlinked", at=730)
    ascend = RankLog(rank=2, ended=1000, offset_ns=OFFSET)
    used = ascend.alloc("used", 70, at=100, device="npu:0", call_id=1)
    once = ascend.alloc("once", 80, at=110, device="npu:0")
    ascend.alloc("never", 90, at=120, device="npu:0")
    ascend.free("used", at=600)
    other = RankLog(rank=1, ended=1000, offset_ns=OFFSET)
    other.alloc("a", 5, at=1)
    other.free("a", at=9)
    with empty_database(path) as connection:
        store_logs(connection, [log, other, ascend])
        store_rows(
            connection, "allocation_use", [_use(used, 3, 150, 480, (170, 480)), _use(once, 1, 112, 112)]
        )
        calls = [_call(1, 90, 110), _call(2, 165, 175), _call(7, 300, 310, 1), _call(8, 320, 330, 1)]
        store_rows(connection, "operator_call", calls)
    answers = Answers(path)
    yield answers
    answers.close()


def _held(page: Answers, kind: str, rank: int = 0, **asked: Any) -> list[tuple[int, int, int, int | None]]:
    """Sizes, from when to when they were held in vain since the session's start, and over how many steps."""
    rows = page.ask("inefficient", rank=rank, kind=kind, **asked).to_pylist()
    return [(r["size_bytes"], r["held_from_ns"], r["held_until_ns"], r["held_steps"]) for r in rows]


def test_idle_is_from_the_call_that_made_it_to_its_backward(page: Answers) -> None:
    """What was freed before that was not kept for it."""
    assert _held(page, "idle") == [(1 << 30, 110, 300, 0)]


def test_late_is_from_the_last_backward_to_the_free(page: Answers) -> None:
    assert _held(page, "late") == [(1 << 30, 330, 500, 1)]
    facts = page.facts("inefficient", rank=0, kind="late")
    assert (facts["num_blocks"], facts["bytes"]) == (1, 1 << 30)
    assert facts["gib_s"] == pytest.approx(170e-9)


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("early", [(70, 100, 150, None), (80, 110, 112, None)]),
        ("idle", [(70, 170, 480, None)]),
        ("late", [(80, 112, 600, None), (70, 480, 600, None)]),
    ],
)
def test_recorded_uses_tell_what_was_made_early_was_idle_and_was_freed_late(
    page: Answers, kind: str, held: list[tuple[int, int, int, int | None]]
) -> None:
    """What was not freed is held to the last event; of what was never used nothing is said."""
    assert _held(page, kind, 2) == held
    facts = page.facts("inefficient", rank=2, kind=kind)
    assert (facts["recorded"], facts["num_blocks"]) == (True, len(held))


def test_wait_is_from_the_request_of_a_free_to_the_free(page: Answers) -> None:
    assert _held(page, "wait") == [(6, 700, 730, 0)]


def test_what_outlives_its_step_is_counted_in_steps(page: Answers) -> None:
    """Parameters are made to stay; what was made in step 1 saw no later step end."""
    assert _held(page, "outlives", least_steps=0) == [(1 << 30, 400, 500, 0), (6, 600, 730, 0)]
    assert _held(page, "outlives") == []


def test_a_threshold_and_a_range_leave_out_the_rest(page: Answers) -> None:
    assert _held(page, "late", least_ns=170)
    assert not _held(page, "late", least_ns=171)
    assert _held(page, "late", from_=500, to=501)
    assert not _held(page, "late", from_=501, to=502)
    assert _held(page, "late", from_=0, to=330)
    assert not _held(page, "late", from_=0, to=329)
    assert not _held(page, "late", pick="category:gradient")


@pytest.mark.parametrize(
    ("rank", "kind", "says"),
    [
        (0, "early", "msmemscope --events=alloc,free,launch,access"),
        (1, "late", "use is not recorded"),
        (1, "idle", "use is not recorded"),
        (1, "wait", "does not report"),
        (1, "outlives", "no step"),
    ],
)
def test_what_is_not_recorded_is_said(page: Answers, rank: int, kind: str, says: str) -> None:
    answer = page.ask("inefficient", rank=rank, kind=kind)
    assert answer.num_rows == 0
    assert facts_of(answer)["recorded"] is False
    assert says in facts_of(answer)["why"]


def test_the_sql_gives_the_rows(page: Answers) -> None:
    answer = page.ask("inefficient", rank=0, kind="idle")
    again = page.queries.sql(facts_of(answer)["sql"])
    assert again["allocation_id"].to_pylist() == answer["allocation_id"].to_pylist()
