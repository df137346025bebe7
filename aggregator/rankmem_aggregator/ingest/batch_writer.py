"""What every writer of batches has: a bounded queue, one thread, counters, and what readers ask of it.

Stage: ingest. In: submissions from many ingest calls; out: an outcome for each batch, never before it is
durable. How batches are stored is the business of a subclass: ``writer`` commits to a database file,
``lake.writer`` to a lake. A failure that is not expected ends the thread, and with it the service.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.attempts import Starts
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.ingest.batch_queue import BatchQueue, Outcome, Submission
from rankmem_aggregator.ingest.counters import (
    COMMIT_BOUNDS_S,
    LAG_BOUNDS_S,
    Distribution,
    Errors,
    WriterCounters,
)
from rankmem_aggregator.ingest.liveness import Liveness
from rankmem_aggregator.ingest.rank_memory import RankMemory
from rankmem_aggregator.ingest.sequence import SpoolProgress
from rankmem_aggregator.retention.limits import NS_PER_S
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 5.0
"""A full disk is checked every five seconds: batches wait in the spools meanwhile."""
WARN_EVERY_S: Final = 60.0


class BatchWriter:
    """The one thread that writes, from :meth:`start` to :meth:`close`.

    Args:
        config: of the aggregator.
        progress: how far each spool is stored.
        starts: the attempt under which each spool is stored.
        died: stops the service; called from the writer's thread.
    """

    def __init__(
        self,
        config: AggregatorConfig,
        *,
        progress: SpoolProgress,
        starts: Starts,
        died: Callable[[BaseException], None],
    ) -> None:
        self.queue = BatchQueue(batches_max=config.queue_batches_max, bytes_max=config.queue_bytes_max)
        self.counters = WriterCounters()
        self.commit_seconds = Distribution(COMMIT_BOUNDS_S)
        """Of each commit, seconds."""
        self.lag_seconds = Distribution(LAG_BOUNDS_S)
        """Of each batch, from its last event to its commit, seconds."""
        self.errors = Errors()
        """Refusals, here and by the services."""
        self.liveness = Liveness()
        self.rank_memory = RankMemory(config.metrics_ranks if config.metrics or config.otlp else 0)
        self.stalled: Exception | None = None
        """Why the current commit is being retried; None while commits succeed."""
        self.progress = progress
        self.starts = starts
        self._config = config
        self._died = died
        self._abandoned = threading.Event()
        self._was_cut_short = False
        self._warned_at_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="rankmem-writer", daemon=True)

    @property
    def takes_details(self) -> bool:
        """Whether batches may come without their rows of events, and those later."""
        return False

    @property
    def waits_for(self) -> str:
        """What a batch waits for that is not stored within seconds, while nothing is wrong."""
        return "other batches are before it in the queue"

    @property
    def unstored_since_ns(self) -> int:
        """Arrival of the oldest batch that answers have and files do not, ns since 1970; 0: there is none."""
        return 0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def num_pruned(self) -> int:
        """Sessions deleted since the start, for the limits on what is kept."""
        return 0

    @property
    def is_alive(self) -> bool:
        """Whether batches are still committed."""
        return self._thread.is_alive()

    def look_up(self, spool: Spool) -> None:
        """Learns what is stored of a spool that is being opened, where others may store it too. Any thread.

        Raises:
            RankmemError: it cannot be found out now.
        """

    def maintain(self) -> None:
        """Wakes the writer if there is work without a batch. Once a second; any thread."""

    def close(self, timeout_s: float) -> bool:
        """Commits what is queued and ends the thread; False if time ran out and batches were abandoned."""
        self.queue.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._abandoned.set()
        left = self.queue.abandon()
        for submission in left:
            submission.done(refused(submission, closing()))
        if self._thread.is_alive():
            self._thread.join()  # one group at most: a running commit cannot be left
        return not left and not self._was_cut_short

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as exc:  # noqa: BLE001  a dead writer stops the whole service
            if self._abandoned.is_set():
                self._was_cut_short = True  # close() ran out of time: what is left is in the shippers' spools
                return
            logger.error("the writer stopped: %s", exc)
            self.queue.close()
            self._died(exc)

    def _work(self) -> None:
        """Takes groups off the queue and stores them until it is closed."""
        raise NotImplementedError

    def _wait_to_retry(self, exc: Exception, wait_s: float) -> None:
        """Before a commit that failed is tried again.

        Raises:
            RankmemError: UNAVAILABLE, for the aggregator is closing.
        """
        self._count(retries=1)
        if time.monotonic() - self._warned_at_s > WARN_EVERY_S:
            self._warned_at_s = time.monotonic()
            logger.warning("a commit failed and is retried (%d times so far): %s", self.counters.retries, exc)
        if self._abandoned.wait(wait_s):
            raise closing() from exc

    def _observe(self, batches: Sequence[IncomingBatch]) -> None:
        """Of batches that are stored: their ranks are alive, so long behind, and hold so much."""
        for lag_ns in self.liveness.stored(batches):
            self.lag_seconds.observe(lag_ns / NS_PER_S)
        self.rank_memory.stored(batches)

    def _count(self, **more: int) -> None:
        # Replaced whole by the one thread that writes it: readers see a consistent value.
        self.counters = replace(
            self.counters, **{name: getattr(self.counters, name) + count for name, count in more.items()}
        )


def closing() -> RankmemError:
    """The error of a batch that an aggregator which ends could not store."""
    return RankmemError(Code.UNAVAILABLE, "the aggregator is closing", "send again when it is back")


def acknowledged(submission: Submission) -> Outcome:
    """The outcome of a batch that is stored."""
    batch = submission.batch
    return Outcome(
        spool_id=batch.spool.spool_id, batch_number=batch.batch_number, last_sequence=batch.sequence_last
    )


def refused(submission: Submission, error: RankmemError) -> Outcome:
    """The outcome of a batch that is not stored."""
    batch = submission.batch
    return Outcome(spool_id=batch.spool.spool_id, batch_number=batch.batch_number, error=error)
