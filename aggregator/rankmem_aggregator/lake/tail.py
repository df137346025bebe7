"""What an aggregator has received of a lake and not stored, beside the files that count: queries see both.

Stage: ingest, between the writer's thread and those of queries. A batch is in one of them at any moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.lake.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Received:
    """A batch that is not stored."""

    batch: IncomingBatch
    at_ns: int
    """When it came, ns since 1970."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The state at a moment."""

    catalog: Catalog
    batches: tuple[Received, ...]
    """Received after what the files hold, in order."""
    generation: int
    """With another one the batches are not those of before and more."""


class LiveTail:
    """The state now. Any thread reads, the writer's changes it."""

    def __init__(self, catalog: Catalog) -> None:
        self._lock = threading.Lock()
        self._now = Tail(catalog, (), 0)

    def now(self) -> Tail:
        """The state."""
        with self._lock:
            return self._now

    def add(self, batch: IncomingBatch) -> None:
        """A batch was received."""
        with self._lock:
            now = self._now
            received = Received(batch, time.time_ns())
            self._now = Tail(now.catalog, (*now.batches, received), now.generation)

    def replace(self, catalog: Catalog, spool_ids: Collection[str] | None = None) -> None:
        """Batches were stored, or dropped: of these spools; None: all."""
        with self._lock:
            now = self._now
            kept = [
                r for r in now.batches if spool_ids is not None and r.batch.spool.spool_id not in spool_ids
            ]
            self._now = Tail(catalog, tuple(kept), now.generation + 1)

    def offer(self, catalog: Catalog, seen: Tail) -> None:
        """What counts now, by others' commits. It must not have rows that are in the batches of ``seen``, of
        which it was read; others that have come meanwhile were not looked at, and the next offer counts.
        """
        with self._lock:
            if self._now.batches is seen.batches and catalog.version > self._now.catalog.version:
                self._now = Tail(catalog, self._now.batches, self._now.generation)
