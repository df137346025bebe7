"""The bounded queue between the threads of ingest calls and the writer.

Stage: between ingest call and writer. In: submissions from many threads, which wait while it is full (so a
call stops reading and gRPC's flow control slows its shipper); out: groups for the writer, oldest first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.ingest.sequence import Opening
from rankmem_protos.errors import RankmemError

SHRUNK_SHARE: Final = 8
"""A shrunk queue admits this part of its bytes. One batch at a time would hardly free more, and commits
cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for a batch: acknowledged with the spool's last stored sequence, or refused."""

    spool_id: str
    batch_number: int
    last_sequence: int = -1
    error: RankmemError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A batch, and ``done`` for its outcome: called once, from the writer's thread; it must not block.

    ``received`` is called before, once, by a writer that stores later than it takes; None: its sender waits
    for the outcome.
    """

    batch: IncomingBatch
    done: Callable[[Outcome], None]
    opening: Opening | None = None
    """How its call opened the spool; None: there is no call."""
    received: Callable[[Outcome], None] | None = None


class BatchQueue:
    """First in, first out; bounded by count and by decoded bytes (one batch always fits).

    A batch is admitted by its declared size before it is decoded, so what is being decoded counts.
    """

    def __init__(self, *, batches_max: int, bytes_max: int) -> None:
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._waiting: deque[Submission] = deque()
        self._bytes = 0
        self._rows = 0
        self._closed = False
        self._woken = False
        self._is_shrunk = False
        self._admitted = 0  # batches that are being decoded
        self._admitted_bytes = 0
        self._lock = threading.Lock()
        self._waiters: deque[threading.Condition] = deque()  # for room, in order
        self._has_batch = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def size_bytes(self) -> int:
        """Decoded bytes that wait, or are being decoded. Any thread."""
        return self._bytes + self._admitted_bytes

    def admit(self, size_bytes: int) -> bool:
        """Waits until there is room for so many bytes and reserves it; False once the queue is closed.

        First come, first served: of a thousand calls none is passed over. To be followed by :meth:`put`
        or :meth:`release` with the same number.
        """
        with self._lock:
            turn = threading.Condition(self._lock)
            self._waiters.append(turn)
            turn.wait_for(lambda: self._closed or (self._waiters[0] is turn and self._fits(size_bytes)))
            self._waiters.remove(turn)
            if not self._closed:
                self._admitted += 1
                self._admitted_bytes += size_bytes
            self._notify_first()
            return not self._closed

    def release(self, size_bytes: int) -> None:
        """Releases room that was admitted and is not needed."""
        with self._lock:
            self._admitted -= 1
            self._admitted_bytes -= size_bytes
            self._notify_first()

    def put(self, submission: Submission, admitted_bytes: int | None = None) -> bool:
        """Adds one, waiting while the queue is full; False (and not added) once the queue is closed.

        Args:
            submission: a decoded batch.
            admitted_bytes: what was admitted for it; None: nothing, and it is admitted now.
        """
        size_bytes = submission.batch.size_bytes
        if admitted_bytes is None:
            admitted_bytes = size_bytes
            if not self.admit(size_bytes):
                return False
        with self._lock:
            self._admitted -= 1
            self._admitted_bytes -= admitted_bytes
            if self._closed:
                return False
            self._waiting.append(submission)
            self._bytes += size_bytes
            self._rows += submission.batch.tallest_rows
            self._has_batch.notify()
            self._notify_first()
        return True

    def shrink(self, is_shrunk: bool) -> None:
        """While shrunk, an eighth of the bytes is admitted; all have their turn. Any thread."""
        with self._lock:
            self._is_shrunk = is_shrunk
            self._notify_first()

    def take(
        self,
        *,
        rows_max: int,
        bytes_max: int,
        wait_s: float,
        not_before_s: float = 0.0,
        enough_rows: int = 1,
        idle_s: float | None = None,
    ) -> list[Submission] | None:
        """The next group; None once closed and drained, empty after :meth:`wake`.

        Waits for a first batch, then a while for more.

        Args:
            rows_max: rows of the tallest table; a group ends before it passes them (one batch always goes).
            bytes_max: the same in decoded bytes.
            wait_s: how long to wait for more while there are fewer than ``enough_rows``.
            not_before_s: until this time (monotonic) it waits on such a group at least.
            enough_rows: of the tallest tables.
            idle_s: how long to wait for the first batch; then the group is empty. None: for ever.
        """
        with self._lock:
            self._has_batch.wait_for(
                lambda: self._closed or self._woken or bool(self._waiting), timeout=idle_s
            )
            self._woken = False
            if not self._waiting:
                return None if self._closed else []
            enough = min(enough_rows, rows_max)
            timeout_s = max(wait_s, not_before_s - time.monotonic())
            self._has_batch.wait_for(lambda: self._closed or self._rows >= enough, timeout=timeout_s)
            group = self._pop_group(rows_max, bytes_max)
            self._notify_first()
        return group

    def wake(self) -> None:
        """Lets :meth:`take` return an empty group if no batch waits: there is other work. Any thread."""
        with self._lock:
            self._woken = True
            self._has_batch.notify()

    def close(self) -> None:
        """No more may be put; what waits may still be taken. Idempotent."""
        with self._lock:
            self._closed = True
            for turn in self._waiters:
                turn.notify()
            self._has_batch.notify_all()

    def abandon(self) -> list[Submission]:
        """Closes, and returns what still waits."""
        self.close()
        with self._lock:
            left = list(self._waiting)
            self._waiting.clear()
            self._bytes = self._rows = 0
        return left

    def _notify_first(self) -> None:
        """Wakes the first waiter alone: a thousand may wait."""
        if self._waiters:
            self._waiters[0].notify()

    def _fits(self, size_bytes: int) -> bool:
        num_batches = len(self._waiting) + self._admitted
        if not num_batches:
            return True
        taken_bytes = self._bytes + self._admitted_bytes
        bytes_max = self._bytes_max // SHRUNK_SHARE if self._is_shrunk else self._bytes_max
        return num_batches < self._batches_max and taken_bytes + size_bytes <= bytes_max

    def _pop_group(self, rows_max: int, bytes_max: int) -> list[Submission]:
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
