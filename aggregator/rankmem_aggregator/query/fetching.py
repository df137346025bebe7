"""Rows of events brought from their hosts: asked for at an aggregator, and waited for.

Stage: query, in the process of ``rankmem fetch``, and in an aggregator, which brings what can hold the job's
peak unasked. In: what passes questions on to the shippers that are connected, a session and what is wanted of
it; out: what came and what did not. What comes is stored as any batch is, and seen in ``availability``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from rankmem_aggregator.query.aggregator_state import AggregatorState
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.sql import query_text

ASK_AGAIN_S: Final = 20.0
"""A shipper that connects again has forgotten what it was asked."""
POLL_S: Final = 1.0
UNCONNECTED_S: Final = 10.0
"""A shipper that lost its connection is back by then, or it has gone."""
STRETCHES_MAX: Final = 10_000
"""Asked for by one call, as the aggregator takes them."""
Row = dict[str, Any]
Ask = Callable[[str, Parameters], pa.Table]
Said = Callable[[int, int], None]
_Key = tuple[str, int, int]
"""Spool, first and last position."""


class Bringing(Protocol):
    """An aggregator that stretches are brought to."""

    def sql(self, text: str, parameters: Parameters) -> pa.Table:
        """The answer of a statement."""

    def fetch(self, spool_id: str, ranges: Sequence[tuple[int, int]]) -> bool:
        """Asks the shipper of a spool for stretches; False where none is connected."""


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What a fetch has brought."""

    came: int = 0
    """Stretches that came."""
    gone: int = 0
    """Stretches that their hosts have no longer."""
    waiting: int = 0
    """Stretches that did not come in time, though their shipper is connected."""
    unconnected: dict[str, list[int]] = field(default_factory=dict)
    """By host the ranks of which no shipper is connected to the aggregator."""
    size_bytes: int = 0
    """Of the rows that were asked for around the job's peak, about."""

    @property
    def is_whole(self) -> bool:
        """Whether all that was asked for is here."""
        return not (self.gone or self.waiting or self.unconnected)


def fetch(
    queries: Bringing,
    session_id: str,
    ranks: Sequence[int] | None,
    *,
    from_ns: int | None = None,
    until_ns: int | None = None,
    timeout_s: float,
    said: Said = lambda came, all_of_them: None,
) -> Fetched:
    """Brings the rows of events that stayed on their hosts.

    Args:
        queries: the aggregator.
        session_id: the full id.
        ranks: of these alone; None: of all.
        from_ns: stretches with events at or after it, common clock; None: all.
        until_ns: stretches with events at or before it; None: all.
        timeout_s: longest wait.
        said: called with the stretches that came and all that are wanted, now and then.

    Raises:
        RankmemError: the aggregator does not answer, or is older.
    """
    given: Parameters = {
        "session": session_id,
        "ranks": None if ranks is None else ",".join(map(str, ranks)),
        "from_ns": from_ns,
        "until_ns": until_ns,
    }
    deadline_s = time.monotonic() + timeout_s
    return _Fetch(queries, given, deadline_s, said, threading.Event()).bring()


def fetch_peak(
    queries: Bringing,
    session_id: str,
    *,
    timeout_s: float,
    said: Said = lambda came, all_of_them: None,
    bytes_max: int | None = None,
    stop: threading.Event | None = None,
) -> Fetched:
    """Brings the stretches that can hold the job's peak, the likeliest first, until it is known exactly.

    What came makes others unable to hold it. What is gone or does not come leaves an interval.

    Args:
        queries: the aggregator.
        session_id: the full id.
        timeout_s: longest wait.
        said: as of :func:`fetch`.
        bytes_max: brings no more than this; None: all that is needed.
        stop: ends it.

    Raises:
        RankmemError: as :func:`fetch`.
    """
    stop = stop or threading.Event()
    given: Parameters = {"session": session_id, "ranks": None, "from_ns": None, "until_ns": None}
    deadline_s = time.monotonic() + timeout_s
    fetching = _Fetch(queries, given, deadline_s, said, stop)
    found, asked, room, is_first = Fetched(), set[_Key](), bytes_max, True
    while not stop.is_set() and time.monotonic() < deadline_s:
        rows = _next_at_peak(queries.sql, session_id, room, is_first=is_first)
        new = [row for row in rows if not row["is_gone"] and _key(row) not in asked]
        found.gone = sum(row["is_gone"] for row in rows)
        if not new and not is_first:
            break
        is_first = False
        asked |= {_key(row) for row in new}
        part = fetching.bring(asked)
        found.came += part.came
        found.waiting, found.unconnected = part.waiting, part.unconnected
        found.size_bytes += _size(new)
        room = None if bytes_max is None else bytes_max - found.size_bytes
    return found


def is_stored_within(state: Callable[[], AggregatorState], timeout_s: float) -> bool:
    """Waits until what an aggregator has received by now is stored: its answers have it before that, those of
    others, who read the lake's files, do not.

    Args:
        state: asks the aggregator.
        timeout_s: longest wait.

    Returns:
        False if it was not in time.

    Raises:
        RankmemError: the aggregator does not answer.
    """
    deadline_s, now = time.monotonic() + timeout_s, state()
    came_ns = now.now_ns
    while 0 < now.unstored_since_ns <= came_ns:
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_S / 4)
        now = state()
    return True


def stretches_at_peak(
    ask: Ask, session_id: str, shares: pa.Table | None, *, is_known: bool = False
) -> list[Row]:
    """The stretches that are not here and can hold a sum as high as a known one.

    Args:
        ask: asks the store.
        session_id: the full id.
        shares: rows of ``job_peak``: sums that were reached; None: those with the highest bound.
        is_known: whether they are the peak: then those with events as near as the clocks may differ.
    """
    if shares is None:
        return _at_peak(ask, session_id, None)
    if not is_known:
        least = {row["device_type"]: row["job_peak_bytes"] for row in shares.to_pylist()}
        text = json.dumps([{"device_type": name, "bytes": bytes_} for name, bytes_ in least.items()])
        return _at_peak(ask, session_id, text)
    (error,) = ask(query_text("clock_error"), {"session": session_id})["error_ns"].to_pylist()
    found: dict[_Key, Row] = {}
    for at_ns in set(shares["job_peak_ns"].to_pylist()):
        given = {
            "session": session_id, "ranks": None, "from_ns": at_ns - 2 * error, "until_ns": at_ns + 2 * error,
        }  # fmt: skip
        rows = ask(query_text("stretches_missing"), given).to_pylist()
        found |= {_key(row): row for row in rows}
    return list(found.values())


def _next_at_peak(ask: Ask, session_id: str, room: int | None, *, is_first: bool) -> list[Row]:
    """The stretches to bring next; those that are gone are among them. None where it is exact."""
    # What is certain of sums without events is little: first those where it can have been the highest.
    if is_first and (rows := stretches_at_peak(ask, session_id, None)):
        return rows if _fits(rows, room) else []
    lowest, highest = (
        ask(query_text(name), {"session": session_id}) for name in ("job_peak_lowest", "job_peak_highest")
    )
    if lowest.equals(highest):
        rows = stretches_at_peak(ask, session_id, lowest, is_known=True)
        return rows if _fits(rows, room) else []
    for reached in (lowest, highest):
        rows = stretches_at_peak(ask, session_id, reached)
        if _fits(rows, room):
            return rows
    return []


def _at_peak(ask: Ask, session_id: str, least: str | None) -> list[Row]:
    rows = ask(query_text("stretches_at_peak"), {"session": session_id, "least": least})
    found: list[Row] = rows.to_pylist()
    return found


def _fits(rows: Iterable[Row], room: int | None) -> bool:
    return room is None or _size(row for row in rows if not row["is_gone"]) <= room


def _size(rows: Iterable[Row]) -> int:
    return sum(row["size_bytes"] or 0 for row in rows)


class _Fetch:
    """Stretches that are asked for until they are here.

    Args:
        queries: the aggregator.
        given: the parameters of ``stretches_missing``.
        deadline_s: by the monotonic clock.
        said: as of :func:`fetch`.
        stop: ends it.
    """

    def __init__(
        self, queries: Bringing, given: Parameters, deadline_s: float, said: Said, stop: threading.Event
    ) -> None:
        self._queries, self._given = queries, given
        self._deadline_s, self._said, self._stop = deadline_s, said, stop
        self._asked: set[_Key] = set()
        self._asked_s: dict[str, float] = {}
        self._lost_s: dict[str, float] = {}  # since when no shipper of a spool is connected

    def bring(self, only: Collection[_Key] | None = None) -> Fetched:
        """Brings what is missing, or of it these stretches alone."""
        first = left = self._missing(only)
        wanted = {_key(row) for row in first if not row["is_gone"]}
        while on_hosts := _by_spool(left):
            self._ask(on_hosts)
            self._said(len(wanted) - sum(map(len, on_hosts.values())), len(wanted))
            now_s = time.monotonic()
            lost = all(now_s - self._lost_s.get(spool, now_s) >= UNCONNECTED_S for spool in on_hosts)
            if lost or now_s >= self._deadline_s or self._stop.wait(POLL_S):
                break
            left = self._missing(only)
        found = Fetched(
            came=len(wanted - {_key(row) for row in left}), gone=sum(row["is_gone"] for row in left)
        )
        for spool_id, rows in on_hosts.items():
            if spool_id in self._lost_s:
                found.unconnected.setdefault(rows[0]["host_uid"] or "unknown", []).append(rows[0]["rank"])
            else:
                found.waiting += len(rows)
        return found

    def _missing(self, only: Collection[_Key] | None) -> list[Row]:
        rows = self._queries.sql(query_text("stretches_missing"), self._given).to_pylist()
        return [row for row in rows if only is None or _key(row) in only]

    def _ask(self, on_hosts: dict[str, list[Row]]) -> None:
        """Asks for what was not asked for lately."""
        now_s = time.monotonic()
        for spool_id, rows in on_hosts.items():
            keys = {_key(row) for row in rows}
            again_s = POLL_S if spool_id in self._lost_s else ASK_AGAIN_S
            if keys <= self._asked and now_s - self._asked_s[spool_id] < again_s:
                continue
            self._asked |= keys
            self._asked_s[spool_id] = now_s
            ranges = [(row["sequence_first"], row["sequence_last"]) for row in rows]
            parts = [ranges[at : at + STRETCHES_MAX] for at in range(0, len(ranges), STRETCHES_MAX)]
            if all(self._queries.fetch(spool_id, part) for part in parts):
                self._lost_s.pop(spool_id, None)
            else:
                self._lost_s.setdefault(spool_id, now_s)


def _by_spool(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Those that are on their hosts."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if not row["is_gone"]:
            found.setdefault(row["spool_id"], []).append(row)
    return found


def _key(row: Row) -> _Key:
    return row["spool_id"], row["sequence_first"], row["sequence_last"]
