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

from rankmem_aggregator.batch import IncomingBatch
from rankmem_protos.errors import RankmemError


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
        self._closed = False
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._has_batch = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, submission: Submission) -> bool:
        """Adds one, waiting while the queue is full; False (and not added) once the queue is closed."""
        size_bytes = submission.batch.size_bytes
        with self._lock:
            self._has_room.wait_for(lambda: self._closed or self._fits(size_bytes))
            if self._closed:
                return False
            self._waiting.append(submission)
            self._bytes += size_bytes
            self._has_batch.notify()
        return True

    def take(self, *, rows_max: int, bytes_max: int, wait_s: float) -> list[Submission]:
        """The next group: waits for a first batch, then up to ``wait_s`` for company; empty once closed and drained."""
        with self._lock:
            self._has_batch.wait_for(lambda: self._closed or bool(self._waiting))
            deadline = time.monotonic() + wait_s
            self._has_batch.wait_for(
                lambda: self._closed or self._is_group(rows_max, bytes_max), timeout=wait_s
            )
            del deadline
            group = self._pop_group(rows_max, bytes_max)
            self._has_room.notify_all()
        return group

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
            self._bytes = 0
        return left

    def _fits(self, size_bytes: int) -> bool:
        if not self._waiting:
            return True
        return len(self._waiting) < self._batches_max and self._bytes + size_bytes <= self._bytes_max

    def _is_group(self, rows_max: int, bytes_max: int) -> bool:
        rows = sum(waiting.batch.num_rows for waiting in self._waiting)
        return rows >= rows_max or self._bytes >= bytes_max or len(self._waiting) >= self._batches_max

    def _pop_group(self, rows_max: int, bytes_max: int) -> list[Submission]:
        group: list[Submission] = []
        rows = size_bytes = 0
        while self._waiting and rows < rows_max and size_bytes < bytes_max:
            submission = self._waiting.popleft()
            group.append(submission)
            rows += submission.batch.num_rows
            size_bytes += submission.batch.size_bytes
        self._bytes -= size_bytes
        return group
