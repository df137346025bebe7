"""The one thread that writes: takes decoded batches off a bounded queue, commits groups, then acknowledges.

Stage: ingest. In: submissions from many ingest calls; out: committed rows, and an outcome for each batch
after its commit. A batch that is wrong is refused alone, the others of its group are kept. A commit that
fails for want of memory or disk is tried again (client queries are interrupted first); any other failure of
the database ends the thread, and with it the service. Never acknowledges before the commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.attempts import Starts
from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.ingest.batch_queue import BatchQueue, Outcome, Submission
from rankmem_aggregator.ingest.counters import (
    COMMIT_BOUNDS_S,
    LAG_BOUNDS_S,
    Distribution,
    Errors,
    WriterCounters,
)
from rankmem_aggregator.ingest.group import concatenated
from rankmem_aggregator.ingest.liveness import Liveness
from rankmem_aggregator.ingest.sequence import Opening, SpoolProgress, Verdict
from rankmem_aggregator.ingest.stored_state import (
    progress_rows,
    pruned_progress,
    stored_progress,
    stored_stacks,
    stored_starts,
)
from rankmem_aggregator.retention.limits import NS_PER_S, Limits
from rankmem_aggregator.retention.worker import RetentionWorker
from rankmem_aggregator.store.recovery import TRANSIENT
from rankmem_aggregator.store.schema import INGEST_PROGRESS, SPOOL_START, STACK
from rankmem_aggregator.store.store import Store
from rankmem_aggregator.summaries.schedule import Summaries
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 5.0
"""A full disk is checked every five seconds: batches wait in the spools meanwhile."""
WARN_EVERY_S: Final = 60.0
BAD_ROWS: Final = (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError, pa.ArrowException)
"""Errors that rows can cause although they passed every check: of the batch, not of the database."""


class Writer:
    """Owns the store's write connection from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        store: Store,
        config: AggregatorConfig,
        *,
        free_memory: Callable[[], None],
        died: Callable[[BaseException], None],
    ) -> None:
        """``free_memory`` interrupts client queries, ``died`` stops the service: from the writer's thread."""
        self.queue = BatchQueue(batches_max=config.queue_batches_max, bytes_max=config.queue_bytes_max)
        self.counters = WriterCounters()
        self.commit_seconds = Distribution(COMMIT_BOUNDS_S)
        """Of each commit, seconds."""
        self.lag_seconds = Distribution(LAG_BOUNDS_S)
        """Of each batch, from its last event to its commit, seconds."""
        self.errors = Errors()
        """Refusals, here and by the services."""
        self.liveness = Liveness()
        self.stalled: Exception | None = None
        """Why the current commit is being retried; None while commits succeed."""
        self._store = store
        self._config = config
        self._free_memory = free_memory
        self._died = died
        self.progress = SpoolProgress(stored_progress(store))
        """How far each spool is stored."""
        self.starts = Starts(stored_starts(store), [one.spool for one in pruned_progress(store)])
        """The attempt under which each spool is stored."""
        self._stacks = stored_stacks(store)
        self._summaries = Summaries(store)
        self.progress.set_tombstones(pruned_progress(store))
        self._retention = RetentionWorker(
            store, Limits.of(config), deleted=self._add_tombstones, cleaned=self._reload
        )
        self._abandoned = threading.Event()
        self._warned_at_s = float("-inf")
        self._group_began_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="rankmem-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def num_pruned(self) -> int:
        """Sessions deleted since the start, for the limits on what is kept."""
        return self._retention.num_pruned

    def maintain(self) -> None:
        """Wakes the writer if it has to reopen the instance or to delete sessions. Any thread."""
        if self._retention.is_due or self._store.instance.is_invalidated:
            self.queue.wake()

    @property
    def is_alive(self) -> bool:
        """Whether batches are still committed."""
        return self._thread.is_alive()

    def close(self, timeout_s: float) -> bool:
        """Commits what is queued and ends the thread; False if time ran out and the rest was abandoned."""
        self.queue.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        in_time = not self._thread.is_alive()
        self._abandoned.set()
        for submission in self.queue.abandon():
            submission.done(_refused(submission, _closing()))
        if self._thread.is_alive():
            self._thread.join()  # one group at most: a running commit cannot be left
        return in_time

    def _run(self) -> None:
        try:
            self._summarise()
            while (group := self._take()) is not None:
                self._store.instance.reopen_if_invalidated()
                if group:
                    for submission, outcome in self._store_group(group):
                        submission.done(outcome)
                if not len(self.queue):
                    self._store.checkpoint(self._config.idle_checkpoint_bytes)
                self._summarise()
                self._delete_due()
        except BaseException as exc:  # noqa: BLE001  a dead writer stops the whole service
            if self._abandoned.is_set():
                return  # close() ran out of time: what is left is in the shippers' spools
            logger.error("the writer stopped: %s", exc)
            self.queue.close()
            self._died(exc)

    def _summarise(self) -> None:
        """Writes summaries while no batch waits."""
        while not len(self.queue) and not self._abandoned.is_set() and self._summaries.advance():
            pass

    def _delete_due(self) -> None:
        """Deletes sessions over the limits: one step while batches wait, all steps while none does."""
        while self._retention.advance() and not len(self.queue) and not self._abandoned.is_set():
            pass

    def _add_tombstones(self, session_id: str) -> None:
        self.progress.add_tombstones(session_id)
        self.starts.add_tombstones(session_id)
        self._summaries.forget(session_id)

    def _reload(self) -> None:
        self._stacks = stored_stacks(self._store)
        tombstones = pruned_progress(self._store)
        self.progress.set_tombstones(tombstones)
        self.starts.set_tombstones(one.spool for one in tombstones)

    def _take(self) -> list[Submission] | None:
        config = self._config
        group = self.queue.take(
            rows_max=config.group_rows_max,
            bytes_max=config.group_bytes_max,
            wait_s=config.group_wait_s,
            not_before_s=self._group_began_s + config.group_interval_s,
            enough_rows=config.row_group_rows,
        )
        self._group_began_s = time.monotonic()
        return group

    def _store_group(self, group: Sequence[Submission]) -> list[tuple[Submission, Outcome]]:
        """Stores a group in one transaction; if a row makes that fail, each batch in its own."""
        try:
            return self._store_together(group)
        except MemoryError:  # Arrow's is one of BAD_ROWS as well; the rows are not at fault
            self._rollback()
            raise
        except BAD_ROWS as exc:
            self._rollback()
            if len(group) > 1:
                return [pair for submission in group for pair in self._store_group([submission])]
            error = RankmemError(Code.INVALID, f"the database rejected the rows of the batch: {exc}")
            self._count(refused=1)
            self.errors.add("ingest", error.code)
            if (opening := group[0].opening) is not None:
                opening.refuse()
            return [(group[0], _refused(group[0], error))]
        except BaseException:
            self._rollback()
            raise

    def _store_together(self, group: Sequence[Submission]) -> list[tuple[Submission, Outcome]]:
        outcomes: list[tuple[Submission, Outcome]] = []
        accepted: list[dict[str, pa.Table]] = []
        batches: list[IncomingBatch] = []
        num_rows = 0
        closed: set[Opening] = set()  # by a refusal within this group, which may have to be stored again
        for submission in sorted(group, key=lambda waiting: waiting.batch.spool.spool_id):
            try:
                self.starts.check(submission.batch.spool)
                verdict = self._judge(submission, closed)
            except RankmemError as exc:
                self.errors.add("ingest", exc.code)
                outcomes.append((submission, _refused(submission, exc)))
                if submission.opening is not None:
                    closed.add(submission.opening)
                continue
            outcomes.append((submission, _acknowledged(submission)))
            if verdict is Verdict.STORE:
                self.starts.take(submission.batch)
                batches.append(submission.batch)
                accepted.append(self._stacks.replace(submission.batch.rows))
                num_rows += submission.batch.num_rows
        if accepted:
            self._write(concatenated(accepted), self._summaries.invalidate(batches))
        for opening in closed:
            opening.refuse()
        refused = sum(outcome.error is not None for _, outcome in outcomes)
        for lag_ns in self.liveness.stored(batches):
            self.lag_seconds.observe(lag_ns / NS_PER_S)
        self._count(
            batches=len(accepted),
            rows=num_rows,
            events=sum(batch.num_events for batch in batches),
            wire_bytes=sum(batch.wire_bytes for batch in batches),
            decoded_bytes=sum(batch.size_bytes for batch in batches),
            refused=refused,
            duplicates=len(group) - len(accepted) - refused,
        )
        return outcomes

    def _judge(self, submission: Submission, closed: Set[Opening]) -> Verdict:
        opening = submission.opening
        if opening is not None:
            opening.check_writing()
            if opening in closed:
                raise opening.error()
        return self.progress.judge(submission.batch)

    def _write(self, rows: dict[str, pa.Table], invalidated: dict[str, pa.Table]) -> None:
        """One transaction with the rows, the progress and the new stack numbers; tried until it is stored."""
        rows[INGEST_PROGRESS.name] = progress_rows(self.progress.tentative())
        others = {
            **invalidated,
            STACK.name: self._stacks.pending(),
            SPOOL_START.name: self.starts.rows(),
        }
        rows |= {name: table for name, table in others.items() if table.num_rows}
        wait_s = RETRY_FIRST_S
        while True:
            started_ns = time.perf_counter_ns()
            try:
                self._store.write(rows)
                break
            except TRANSIENT as exc:
                self.stalled = exc
                self._retry_after(exc, wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
        self.stalled = None
        took_ns = time.perf_counter_ns() - started_ns
        self.commit_seconds.observe(took_ns / NS_PER_S)
        self._count(groups=1, commit_ns=took_ns)
        self.progress.commit()
        self.starts.commit()
        self._stacks.commit()
        self._summaries.commit()

    def _retry_after(self, exc: Exception, wait_s: float) -> None:
        if isinstance(exc, duckdb.OutOfMemoryException):
            self._free_memory()
        self._count(retries=1)
        if time.monotonic() - self._warned_at_s > WARN_EVERY_S:
            self._warned_at_s = time.monotonic()
            logger.warning("a commit failed and is retried (%d times so far): %s", self.counters.retries, exc)
        if self._abandoned.wait(wait_s):
            raise _closing() from exc

    def _rollback(self) -> None:
        self.progress.rollback()
        self.starts.rollback()
        self._stacks.rollback()
        self._summaries.rollback()

    def _count(self, **more: int) -> None:
        # Replaced whole by the one thread that writes it: readers see a consistent value.
        self.counters = replace(
            self.counters, **{name: getattr(self.counters, name) + count for name, count in more.items()}
        )


def _closing() -> RankmemError:
    return RankmemError(Code.UNAVAILABLE, "the aggregator is closing", "send again when it is back")


def _acknowledged(submission: Submission) -> Outcome:
    batch = submission.batch
    return Outcome(
        spool_id=batch.spool.spool_id, batch_number=batch.batch_number, last_sequence=batch.sequence_last
    )


def _refused(submission: Submission, error: RankmemError) -> Outcome:
    batch = submission.batch
    return Outcome(spool_id=batch.spool.spool_id, batch_number=batch.batch_number, error=error)
