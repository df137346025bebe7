"""Orders of ``rankmem control``: to the shippers of a session's ranks, now and as they connect again.

Stage: the aggregator's gRPC boundary. In: what a client asks; out: an ``Order`` for each rank, on the call of
its shipper. All ranks that are asked for are told, or none. Orders are kept in memory, for a shipper that
comes back and for a rank of the same attempt that comes late; what became of each is a row that its shipper
sends.
Called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from rankmem_aggregator.ingest.batch import Spool
from rankmem_aggregator.query.missing import ranks_text
from rankmem_protos.bounds import NUMBER_MAX, RANKS_MAX
from rankmem_protos.collector_pb2 import Order
from rankmem_protos.errors import Code, RankmemError

ORDERS_MAX: Final = 256
"""Kept for those that connect later, the latest of all sessions."""
ASKED_BY_CHARS_MAX: Final = 200
"""Of who asks, as the client says; with the address it came from it is in each rank's row."""
WHAT: Final = ("start", "stop", "full", "summary", "auto")


class Told(Protocol):
    """A shipper's call."""

    def running_spools(self) -> list[Spool]:
        """The spools that are open and have not ended."""

    def tell(self, order: Order) -> None:
        """Passes an order on."""

    @property
    def takes_orders(self) -> bool:
        """Whether the shipper knows what to do with it."""

    @property
    def is_read(self) -> bool:
        """Whether the shipper reads what it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An order as a client asked for it."""

    session_id: str
    ranks: frozenset[int]
    """Empty: all."""
    what: str
    step_first: int
    step_last: int | None
    asked_by: str
    order_after: int = 0
    """The highest order of the session that the client knows of: the clock here may be behind."""

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise RankmemError(
                Code.UNSUPPORTED,
                f"this aggregator does not know the order {self.what[:40]!r}",
                "use the same version of rankmem on both ends",
            )
        last = self.step_first if self.step_last is None else self.step_last
        if not 0 <= self.step_first <= last < NUMBER_MAX or not 0 <= self.order_after < NUMBER_MAX:
            raise RankmemError(Code.INVALID, f"steps {self.step_first} to {last} cannot be ordered")
        if any(rank > RANKS_MAX for rank in self.ranks):
            raise RankmemError(Code.INVALID, f"no rank has the number {max(self.ranks)}")

    def means(self, rank: int) -> bool:
        """Whether it is for this rank."""
        return not self.ranks or rank in self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An order that was given."""

    order_id: int
    attempt: int
    told: tuple[int, ...]
    """Ranks, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    asked: Asked
    order_id: int
    asked_ns: int
    attempt: int

    def means(self, spool: Spool) -> bool:
        """Whether it is for this spool."""
        is_of_it = (spool.session_id, spool.attempt) == (self.asked.session_id, self.attempt)
        return is_of_it and self.asked.means(spool.rank)

    def to(self, spool: Spool) -> Order:
        """The order, addressed to a spool."""
        asked = self.asked
        return Order(
            spool_id=spool.spool_id,
            order_id=self.order_id,
            what=asked.what,
            step_first=asked.step_first,
            step_last=asked.step_last,
            asked_by=asked.asked_by,
            asked_ns=self.asked_ns,
        )


class Orders:
    """The orders given since this process began.

    Args:
        clock_ns: the wall clock, ns since 1970.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._standing: deque[_Standing] = deque(maxlen=ORDERS_MAX)
        self._last_id = 0

    def give(self, asked: Asked, calls: Iterable[Told]) -> Given:
        """Tells the ranks, all or none; of several at once each rank is told in the order of their numbers.

        Args:
            asked: the order.
            calls: all shippers that are connected, looked at in here: a spool that is opened meanwhile is
                either among theirs or told by :meth:`tell_opened`.

        Raises:
            RankmemError: NOT_FOUND where a rank's shipper is not connected here, UNSUPPORTED where one is
                older, UNAVAILABLE where one does not read; nothing was told then.
        """
        with self._lock:
            return self._give(asked, calls)

    def tell_opened(self, spool: Spool, call: Told) -> None:
        """Tells the orders for a spool that has just been opened, the earliest first."""
        with self._lock:
            for standing in self._standing:
                if standing.means(spool):
                    call.tell(standing.to(spool))

    def _give(self, asked: Asked, calls: Iterable[Told]) -> Given:
        running = [(call, spool) for call in calls for spool in call.running_spools()]
        running = [(call, spool) for call, spool in running if spool.session_id == asked.session_id]
        attempt = max((spool.attempt for _, spool in running), default=0)
        latest = [(call, spool) for call, spool in running if spool.attempt == attempt]
        meant = [(call, spool) for call, spool in latest if asked.means(spool.rank)]
        _check_all(asked, attempt, meant, {spool.rank for _, spool in latest})
        now_ns = self._clock_ns()
        self._last_id = max(now_ns, self._last_id + 1, asked.order_after + 1)
        standing = _Standing(asked=asked, order_id=self._last_id, asked_ns=now_ns, attempt=attempt)
        self._standing.append(standing)
        for call, spool in meant:
            call.tell(standing.to(spool))
        told = tuple(sorted({spool.rank for _, spool in meant}))
        return Given(order_id=standing.order_id, attempt=attempt, told=told)


def _check_all(asked: Asked, attempt: int, meant: list[tuple[Told, Spool]], running: set[int]) -> None:
    if not running:
        raise RankmemError(
            Code.NOT_FOUND,
            f"no running rank of session {asked.session_id} is connected to this aggregator",
            "rankmem ranks shows which run; ask the aggregator that they ship to",
        )
    absent = asked.ranks - running
    if absent:
        raise RankmemError(
            Code.NOT_FOUND,
            f"{ranks_text(absent)} of attempt {attempt}: not running, or not connected to this aggregator; "
            "nothing was changed",
            f"connected: {ranks_text(running)}",
        )
    older = {spool.rank for call, spool in meant if not call.takes_orders}
    if older:
        raise RankmemError(
            Code.UNSUPPORTED,
            f"the shipper of {ranks_text(older)} is of a version without control; nothing was changed",
            "upgrade rankmem on its host before the next run, or leave these out with --ranks",
        )
    if behind := {spool.rank for call, spool in meant if not call.is_read}:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"the shipper of {ranks_text(behind)} does not read what it is sent; nothing was changed",
            "ask again in a moment, or leave these out with --ranks",
        )
