"""The bounded queue between the streams' reading threads and the writer.

Stage: between stream and ingest. In: submissions from many threads, which wait while it is full (so a
stream stops reading and gRPC's flow control slows its shipper); out: groups for the writer, oldest first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.batch import IncomingBatch
from rankmem_protos.errors import RankmemError

ROW_GROUP_ROWS: Final = 122_880
"""DuckDB's row group. An insert below it goes through the log and is packed at the checkpoint; a larger one
is written as row groups at once, the last of them part-filled for good."""
LARGE_GROUP_ROWS: Final = 3 * ROW_GROUP_ROWS
"""From here on writing at once pays: 2.5 instead of 4.2 CPU seconds for 2 M events, at 35 bytes an event.
In between the part-filled row groups cost 45 to 51 bytes an event (all measured, DuckDB 2.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a batch: acknowledged with the spool's last stored sequence, or refused."""

    spool_id: str
    batch_number: int
    last_sequence: int = -1
    error: RankmemError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A batch and whom to tell; ``done`` is called once, from the writer's thread, and must not block."""

    batch: IncomingBatch
    done: Callable[[Outcome], None]


class BatchQueue:
    """First in, first out; bounded by count and by decoded bytes (one batch always fits)."""

    def __init__(self, *, batches_max: int, bytes_max: int) -> None:
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._waiting: deque[Submission] = deque()
        self._bytes = 0
        self._rows = 0
        self._closed = False
        self._nudged = False
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._has_batch = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def size_bytes(self) -> int:
        """Decoded bytes that wait. Any thread."""
        return self._bytes

    def put(self, submission: Submission) -> bool:
        """Adds one, waiting while the queue is full; False (and not added) once the queue is closed."""
        size_bytes = submission.batch.size_bytes
        with self._lock:
            self._has_room.wait_for(lambda: self._closed or self._fits(size_bytes))
            if self._closed:
                return False
            self._waiting.append(submission)
            self._bytes += size_bytes
            self._rows += submission.batch.tallest_rows
            self._has_batch.notify()
        return True

    def take(
        self, *, rows_max: int, bytes_max: int, wait_s: float, not_before_s: float = 0.0
    ) -> list[Submission] | None:
        """The next group; None once closed and drained, empty after a nudge. Waits for a first batch, then a
        while for company.

        Args:
            rows_max: rows of the tallest table; a group ends before it passes them (one batch always goes).
            bytes_max: the same in decoded bytes.
            wait_s: how long to wait for company while there is less than a row group.
            not_before_s: until this time (monotonic) it waits on such a group at least.
        """
        with self._lock:
            self._has_batch.wait_for(lambda: self._closed or self._nudged or bool(self._waiting))
            self._nudged = False
            if not self._waiting:
                return None if self._closed else []
            enough = min(ROW_GROUP_ROWS, rows_max)
            timeout_s = max(wait_s, not_before_s - time.monotonic())
            self._has_batch.wait_for(lambda: self._closed or self._rows >= enough, timeout=timeout_s)
            group = self._pop_group(rows_max, bytes_max)
            self._has_room.notify_all()
        return group

    def nudge(self) -> None:
        """Whoever takes gets an empty group if nothing waits: there is something else to do. Any thread."""
        with self._lock:
            self._nudged = True
            self._has_batch.notify()

    def close(self) -> None:
        """No more may be put; what waits may still be taken. Idempotent."""
        with self._lock:
            self._closed = True
            self._has_room.notify_all()
            self._has_batch.notify_all()

    def abandon(self) -> list[Submission]:
        """Closes, and hands over what still waits."""
        self.close()
        with self._lock:
            left = list(self._waiting)
            self._waiting.clear()
            self._bytes = self._rows = 0
        return left

    def _fits(self, size_bytes: int) -> bool:
        if not self._waiting:
            return True
        return len(self._waiting) < self._batches_max and self._bytes + size_bytes <= self._bytes_max

    def _pop_group(self, rows_max: int, bytes_max: int) -> list[Submission]:
        """Under one row group, or many: see :data:`LARGE_GROUP_ROWS`."""
        if self._rows < LARGE_GROUP_ROWS:
            rows_max = min(rows_max, ROW_GROUP_ROWS - 1)
        group: list[Submission] = []
        rows = size_bytes = 0
        while self._waiting:
            batch = self._waiting[0].batch
            if group and (rows + batch.tallest_rows > rows_max or size_bytes + batch.size_bytes > bytes_max):
                break
            rows += batch.tallest_rows
            size_bytes += batch.size_bytes
            group.append(self._waiting.popleft())
        self._rows -= rows
        self._bytes -= size_bytes
        return group
