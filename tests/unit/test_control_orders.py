"""Orders at the aggregator: all ranks that are meant are told, or none; and from which step on."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest

from constructed import SECOND_NS, RankLog, empty_database, store_logs
from rankmem_aggregator import connect
from rankmem_aggregator.ingest.batch import Spool
from rankmem_aggregator.query.controlling import agreed_step, furthest_step
from rankmem_aggregator.server.orders import Asked, Orders
from rankmem_cli.run.controlling import refuse_a_guess
from rankmem_protos.collector_pb2 import Order
from rankmem_protos.errors import Code, RankmemError

SESSION = "0TESTSESSION"
S = 1_000_000_000


@dataclass(eq=False)
class Call:
    """A shipper's call with these ranks of an attempt."""

    ranks: tuple[int, ...]
    attempt: int = 0
    takes_orders: bool = True
    is_read: bool = True
    told: list[Order] = field(default_factory=list)

    def running_spools(self) -> list[Spool]:
        return [spool(rank, self.attempt) for rank in self.ranks]

    def tell(self, order: Order) -> None:
        self.told.append(order)


def spool(rank: int, attempt: int = 0, session_id: str = SESSION) -> Spool:
    return Spool(spool_id=f"{attempt}-{rank}", session_id=session_id, attempt=attempt, rank=rank)


def asked(*ranks: int, session_id: str = SESSION, first: int = 100, last: int | None = None) -> Asked:
    return Asked(
        session_id=session_id,
        ranks=frozenset(ranks),
        what="summary",
        step_first=first,
        step_last=last,
        asked_by="me@here",
    )


def told_later(orders: Orders, opened: Spool) -> list[Order]:
    """What the call is told on which this spool is opened."""
    call = Call(())
    orders.tell_opened(opened, call)
    return call.told


def test_every_rank_of_the_latest_attempt_is_told_the_same() -> None:
    calls = [Call((0, 1)), Call((2, 3)), Call((0, 1), attempt=1), Call((2,), attempt=1)]
    given = Orders(lambda: 5 * S).give(asked(last=120), calls)
    assert (given.attempt, given.told, given.order_id) == (1, (0, 1, 2), 5 * S)
    assert (calls[0].told, calls[1].told) == ([], [])
    told = [*calls[2].told, *calls[3].told]
    assert {order.spool_id for order in told} == {"1-0", "1-1", "1-2"}
    assert {(order.order_id, order.step_first, order.step_last, order.what) for order in told} == {
        (5 * S, 100, 120, "summary")
    }


def test_numbers_of_orders_rise_though_the_clock_stands() -> None:
    orders, calls = Orders(lambda: 7), [Call((0,))]
    assert [orders.give(asked(), calls).order_id for _ in range(3)] == [7, 8, 9]


def test_an_order_is_later_than_those_stored_though_this_aggregator_s_clock_is_behind() -> None:
    orders, call = Orders(lambda: 1000 * S), Call((0,))
    given = orders.give(dataclasses.replace(asked(), order_after=5000 * S), [call])
    assert given.order_id == call.told[0].order_id == 5000 * S + 1
    assert call.told[0].asked_ns == 1000 * S
    assert orders.give(asked(), [call]).order_id == 5000 * S + 2


@pytest.mark.parametrize(
    ("calls", "ranks", "code", "says"),
    [
        ([], (), Code.NOT_FOUND, "no running rank"),
        ([Call((0, 1))], (1, 2, 3), Code.NOT_FOUND, "ranks 2, 3 of attempt 0"),
        ([Call((0,)), Call((1, 2), takes_orders=False)], (), Code.UNSUPPORTED, "ranks 1, 2"),
        ([Call((0,)), Call((1,), is_read=False)], (), Code.UNAVAILABLE, "rank 1 does not read"),
    ],
)
def test_where_a_rank_cannot_be_told_none_is(
    calls: list[Call], ranks: tuple[int, ...], code: Code, says: str
) -> None:
    orders = Orders()
    with pytest.raises(RankmemError, match=says) as caught:
        orders.give(asked(*ranks), calls)
    assert caught.value.code is code
    assert not any(call.told for call in calls)
    assert not told_later(orders, spool(0)), "nor later"


def test_an_older_shipper_that_is_left_out_hinders_nobody() -> None:
    calls = [Call((0,)), Call((1,), takes_orders=False)]
    assert Orders().give(asked(0), calls).told == (0,)


def test_who_comes_later_or_again_is_told_what_stands_for_its_attempt_alone() -> None:
    orders = Orders()
    first = orders.give(asked(), [Call((0,))]).order_id
    second = orders.give(asked(0, 3), [Call((0, 3))]).order_id
    assert [order.order_id for order in told_later(orders, spool(3))] == [first, second]
    assert [order.order_id for order in told_later(orders, spool(1))] == [first]
    assert not told_later(orders, spool(3, attempt=1))
    assert not told_later(orders, spool(3, session_id="0OTHERSESSIO"))


def test_a_spool_that_is_opened_while_an_order_is_given_is_told_after_it_and_once() -> None:
    orders, late = Orders(), Call(())
    opened = threading.Event()

    def open_late() -> None:
        opened.set()
        orders.tell_opened(spool(1), late)

    opening = threading.Thread(target=open_late)

    def calls() -> Iterator[Call]:
        opening.start()
        assert opened.wait(10)
        opening.join(0.1)
        yield Call((0,))

    given = orders.give(asked(), calls())
    opening.join(10)
    assert [order.order_id for order in late.told] == [given.order_id]


def test_what_cannot_be_ordered_is_refused() -> None:
    with pytest.raises(RankmemError, match="steps 10 to 9"):
        asked(first=10, last=9)
    with pytest.raises(RankmemError, match="does not know the order"):
        Asked(session_id=SESSION, ranks=frozenset(), what="less", step_first=0, step_last=None, asked_by="")


def progress(last_step: int | None, last_ns: int | None, step_ns: int | None) -> dict[str, int | None]:
    return {"last_step": last_step, "last_ns": last_ns, "step_ns": step_ns}


def test_the_step_is_ahead_of_the_furthest_rank_by_its_pace() -> None:
    ranks = [progress(100, 9 * S, S // 10), progress(110, 9 * S, S // 10)]
    assert furthest_step(ranks, 10 * S) == 121, "110 has ended a second, ten steps, ago"
    assert agreed_step(ranks, 10 * S) == 121 + 21


def test_long_steps_leave_the_one_that_goes_on_and_another() -> None:
    assert agreed_step([progress(10, 0, 30 * S)], 10 * S) == 13


def test_a_rank_that_is_silent_is_not_taken_to_go_on_stepping_for_ever() -> None:
    assert furthest_step([progress(10, 0, S)], 3600 * S) == 16


def test_before_the_first_step_the_third_is_taken() -> None:
    assert agreed_step([progress(None, None, None)], 10 * S) == 2
    assert agreed_step([progress(0, 9 * S, None)], 10 * S) == 3


def test_without_a_session_none_is_guessed_where_several_are_running(tmp_path: Path) -> None:
    path = tmp_path / "shared.duckdb"
    mine, ended = RankLog(session_id="0MINE"), RankLog(session_id="0ENDED", ended=SECOND_NS)
    with empty_database(str(path)) as connection:
        store_logs(connection, [mine, ended])
    with connect(path) as queries:
        refuse_a_guess(queries)
    with duckdb.connect(path) as connection:
        store_logs(connection, [RankLog(session_id="0THEIRS")])
    with connect(path) as queries, pytest.raises(RankmemError) as raised:
        refuse_a_guess(queries)
    assert raised.value.message == "2 sessions are running: 0THEIRS (test), 0MINE (test)"
    assert raised.value.hint == "name one of them: --session ID"
