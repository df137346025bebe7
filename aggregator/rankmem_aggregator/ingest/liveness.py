"""Which ranks are alive now, and how far behind their events are stored.

Stage: ingest. The writer's thread reports what it committed; status and metrics ask from any thread. Kept in
memory for the ranks of the last minutes alone: lasting facts are in the database (``ingest_progress``,
``rank_info``), in the view ``rank_status``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.retention.limits import NS_PER_S

ALIVE_S: Final = 30.0
"""A running rank is sampled once a second, so its shipper always has something to send."""
FORGOTTEN_S: Final = 600.0
"""After so long without a batch a rank is no longer kept here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """A rank's last stored batch."""

    session_id: str
    stored_ns: int
    """When it was committed, the aggregator's clock."""
    lag_ns: int
    """From its last event (on the aggregator's clock, if the offset is known) to then; at least 0."""
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AliveRanks:
    """The ranks that are alive, together."""

    sessions: int = 0
    """With a rank that is alive."""
    ranks: int = 0
    """With a batch within ALIVE_S, and not ended."""
    lag_ns: int = 0
    """The longest of them, at its last batch."""


class Liveness:
    """The last batches of the ranks of the last minutes.

    Args:
        clock_ns: the wall clock, ns since 1970.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._last: dict[str, LastBatch] = {}
        self._offsets_ns: dict[str, int] = {}

    def stored(self, batches: Iterable[IncomingBatch]) -> list[int]:
        """Records committed batches; returns the lag of each that had events, ns. Writer's thread."""
        now_ns = self._clock_ns()
        lags_ns: list[int] = []
        with self._lock:
            for batch in batches:
                spool_id = batch.spool.spool_id
                self._offsets_ns[spool_id] = _offset_ns(batch, self._offsets_ns.get(spool_id, 0))
                before = self._last.get(spool_id)
                lag_ns = 0 if before is None else before.lag_ns
                last_ns = _last_event_ns(batch)
                if last_ns is not None:
                    lag_ns = max(0, now_ns - last_ns - self._offsets_ns[spool_id])
                    lags_ns.append(lag_ns)
                self._last[spool_id] = LastBatch(
                    session_id=batch.spool.session_id, stored_ns=now_ns, lag_ns=lag_ns, final=batch.final
                )
            self._forget(now_ns)
        return lags_ns

    def alive(self) -> AliveRanks:
        """The ranks that are alive now. Any thread."""
        alive = self._alive()
        return AliveRanks(
            sessions=len({last.session_id for last in alive}),
            ranks=len(alive),
            lag_ns=max((last.lag_ns for last in alive), default=0),
        )

    def alive_sessions(self) -> frozenset[str]:
        """The sessions with a rank that is alive now. Any thread."""
        return frozenset(last.session_id for last in self._alive())

    def _alive(self) -> list[LastBatch]:
        since_ns = self._clock_ns() - int(ALIVE_S * NS_PER_S)
        with self._lock:
            return [p for p in self._last.values() if not p.final and p.stored_ns >= since_ns]

    def _forget(self, now_ns: int) -> None:
        before_ns = now_ns - int(FORGOTTEN_S * NS_PER_S)
        gone = [name for name, last in self._last.items() if last.final or last.stored_ns < before_ns]
        for name in gone:
            del self._last[name]
            self._offsets_ns.pop(name, None)


def _last_event_ns(batch: IncomingBatch) -> int | None:
    rows = batch.rows.get("memory_bucket")
    found: int | None = None if rows is None else pc.max(rows["last_ns"]).as_py()
    return found


def _offset_ns(batch: IncomingBatch, before_ns: int) -> int:
    """Of the host's clock: rank_info brings an estimate now and then."""
    rows = batch.rows.get("rank_info")
    if rows is None:
        return before_ns
    found = pc.max(rows["clock_offset_ns"]).as_py()
    return before_ns if found is None else int(found)
