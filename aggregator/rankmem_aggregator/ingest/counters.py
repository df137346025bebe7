"""Counts of an aggregator's own work: totals, distributions, refusals.

Stage: ingest; written by the writer's thread alone, read by any thread (status, metrics). Values only: their
names in Prometheus are given in ``metrics``.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, get_args

from rankmem_protos.errors import Code

Service = Literal["ingest", "query"]
"""The service that a request was for."""

COMMIT_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Of a commit: some 15 ms small, half a second with a checkpoint, more on a busy disk."""
LAG_BOUNDS_S: Final = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86_400.0)
"""From a batch's last event to its commit: the budget is 1 s; a spool left on disk may be days old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCounters:
    """The writer's work since it was opened."""

    groups: int = 0
    batches: int = 0
    """Stored and committed."""
    rows: int = 0
    events: int = 0
    """Rows of memory_event among them."""
    wire_bytes: int = 0
    """Bytes of the stored batches as they arrived: compressed."""
    decoded_bytes: int = 0
    """The same as Arrow in memory."""
    duplicates: int = 0
    """Batches acknowledged because all of them was stored before."""
    refused: int = 0
    retries: int = 0
    """Commits tried again for want of memory or disk."""
    commit_ns: int = 0
    """Time in commits."""


class Distribution:
    """How often values fell between bounds. One thread observes, any thread reads.

    Args:
        bounds: upper bounds, rising; values above the last are counted too.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """How many values were at or below each bound, and last how many there were."""
        total = 0
        return [total := total + count for count in list(self._counts)]


class Errors:
    """Refused requests by service and code. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[Service, Code]] = Counter()
        self.num_damaged = 0
        """Messages of shippers with a wrong checksum."""

    def add(self, service: Service, code: Code) -> None:
        """Counts one refusal."""
        with self._lock:
            self._counts[service, code] += 1

    def add_damaged(self) -> None:
        """Counts a message that arrived damaged."""
        with self._lock:
            self.num_damaged += 1

    def counts(self) -> dict[tuple[Service, Code], int]:
        """All refusals so far; 0 for a service and code without one, so that a rate sees the first."""
        with self._lock:
            return {
                (service, code): self._counts[service, code] for service in get_args(Service) for code in Code
            }
