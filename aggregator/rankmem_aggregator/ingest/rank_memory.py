"""What the ranks hold now on their devices, for metrics: figures of stored batches, without a query.

Stage: ingest. In: batches as they are stored, from the writer's thread; out: the devices of ranks that are
shown, for a scrape in any thread. However many ranks there are, at most N devices are shown in each
``CHOSEN_FOR_S``: a monitoring system keeps a series for each one that was ever shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.ingest.liveness import ALIVE_S

CHOSEN_FOR_S: Final = 300.0
"""A device that was chosen keeps its place for so long, so N places show at most 12 N devices an hour."""
_COLUMNS: Final = (
    "device",
    "seq_last",
    "requested_peak_bytes",
    "requested_last_bytes",
    "allocated_peak_bytes",
    "allocated_last_bytes",
    "reserved_last_bytes",
)


class DeviceOfRank(NamedTuple):
    """A device of a rank."""

    session_id: str
    rank: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a rank held on a device after the last event that is stored."""

    used_bytes: int
    """Allocated where the allocator reports it, else requested; as in the view ``rank_now``."""
    peak_bytes: int
    """The highest since this aggregator first heard of the rank."""
    reserved_bytes: int | None
    """None where the allocator reports none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a scrape shows."""

    held: dict[DeviceOfRank, Held]
    num_alive: int
    """Devices of ranks that are alive, those that are not shown among them."""
    used_bytes: int
    """Of all that are alive."""


@dataclass(slots=True, kw_only=True)
class _Rank:
    """A rank that is alive."""

    attempt: int
    stored_s: float = 0.0
    """When its last batch was stored, monotonic seconds."""
    held: dict[str, Held] = field(default_factory=dict)
    """By device."""


class RankMemory:
    """Devices of living ranks, and which of them are shown.

    Args:
        shown_max: devices that are shown; 0: none, and nothing is kept.
        clock_s: monotonic seconds.
    """

    def __init__(self, shown_max: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.shown_max = shown_max
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._chosen: set[DeviceOfRank] = set()
        self._chosen_until_s = float("-inf")

    def stored(self, batches: Iterable[IncomingBatch]) -> None:
        """Takes over the figures of stored batches. The writer's thread."""
        if not self.shown_max:
            return
        now_s = self._clock_s()
        with self._lock:
            for batch in batches:
                self._take(batch, now_s)

    def shown(self) -> Shown:
        """The devices that hold most; once chosen, each keeps its place for a while. Any thread."""
        now_s = self._clock_s()
        with self._lock:
            self._forget(now_s - ALIVE_S)
            held = {
                DeviceOfRank(*name, device): found
                for name, rank in self._ranks.items()
                for device, found in rank.held.items()
            }
            if now_s >= self._chosen_until_s:
                self._chosen.clear()
                self._chosen_until_s = now_s + CHOSEN_FOR_S
            others = sorted(held.keys() - self._chosen, key=lambda device: (-held[device].used_bytes, device))
            self._chosen.update(others[: self.shown_max - len(self._chosen)])
            return Shown(
                held={device: held[device] for device in sorted(self._chosen & held.keys())},
                num_alive=len(held),
                used_bytes=sum(found.used_bytes for found in held.values()),
            )

    def _take(self, batch: IncomingBatch, now_s: float) -> None:
        session_id, attempt, number = batch.rank_key
        rank = self._ranks.get((session_id, number))
        if rank is not None and rank.attempt > attempt:
            return  # what an earlier attempt had not delivered yet
        if batch.final:
            self._ranks.pop((session_id, number), None)
            return
        if rank is None or rank.attempt < attempt:
            rank = self._ranks[session_id, number] = _Rank(attempt=attempt)
        rank.stored_s = now_s
        buckets = batch.rows.get("memory_bucket")
        rows = [] if buckets is None else buckets.select(list(_COLUMNS)).to_pylist()
        for row in sorted(rows, key=lambda row: int(row["seq_last"])):
            before = rank.held.get(row["device"])
            rank.held[row["device"]] = Held(
                used_bytes=_first_known(row["allocated_last_bytes"], row["requested_last_bytes"]),
                peak_bytes=max(
                    0 if before is None else before.peak_bytes,
                    _first_known(row["allocated_peak_bytes"], row["requested_peak_bytes"]),
                ),
                reserved_bytes=row["reserved_last_bytes"],
            )

    def _forget(self, before_s: float) -> None:
        for name in [name for name, rank in self._ranks.items() if rank.stored_s < before_s]:
            del self._ranks[name]


def _first_known(reported_bytes: int | None, requested_bytes: int) -> int:
    return requested_bytes if reported_bytes is None else reported_bytes
