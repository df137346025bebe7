"""An interrupt of a reader ends what runs and what its request asks next, and nothing of the next request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from constructed import empty_database
from rankmem_aggregator.query.interrupts import Interrupts
from rankmem_aggregator.query.local import LocalQueries
from rankmem_protos.errors import RankmemError

LONG = "SELECT count(*) FROM range(1000000000000) WHERE range % 7 = 5"


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[LocalQueries]:
    empty_database(str(tmp_path / "empty.duckdb")).close()
    with LocalQueries(tmp_path / "empty.duckdb") as opened:
        yield opened


def test_an_interrupt_between_two_statements_refuses_the_second(queries: LocalQueries) -> None:
    queries.sql("SELECT 1")
    queries.interrupt()
    with pytest.raises(RankmemError, match="interrupted"):
        queries.sql("SELECT 2")
    with pytest.raises(RankmemError, match="interrupted"):
        next(iter(queries.stream("SELECT 2")))


def test_the_next_request_is_not_hit(queries: LocalQueries) -> None:
    queries.interrupt()
    queries.allow()
    assert queries.sql("SELECT 2 AS two").to_pylist() == [{"two": 2}]


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.002, 0.01, 0.05])
def test_a_statement_that_is_just_beginning_is_ended_too(queries: LocalQueries, after_s: float) -> None:
    interrupter = threading.Timer(after_s, queries.interrupt)
    interrupter.start()
    began_s = time.monotonic()
    with pytest.raises(RankmemError):
        queries.sql(LONG)
    assert time.monotonic() - began_s < 20
    interrupter.join()


def test_an_interrupt_that_its_engine_forgets_is_repeated() -> None:
    interrupts = Interrupts()
    calls = threading.Semaphore(0)
    with interrupts.running(calls.release):
        interrupts.interrupt()
        for _ in range(3):
            assert calls.acquire(timeout=10)
    while calls.acquire(blocking=False):
        pass
    interrupts.allow()
    other = threading.Event()
    with interrupts.running(other.set):
        assert not other.wait(0.1)


def test_a_stream_that_is_collected_while_an_interrupt_goes_round_does_not_stop_it() -> None:
    interrupts, ended = Interrupts(), list[str]()
    forgotten = interrupts.running(lambda: None)
    with interrupts.running(lambda: forgotten.__exit__(None, None, None)):
        forgotten.__enter__()
        with interrupts.running(lambda: ended.append("last")):
            interrupts.interrupt()
    assert ended
