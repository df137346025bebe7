"""The one thread that writes: takes decoded batches off a bounded queue, commits groups, then acknowledges.

Stage: ingest. In: submissions from many ingest calls; out: committed rows, and an outcome for each batch
after its commit. A batch that is wrong is refused alone, the others of its group are kept. A commit that
fails for want of memory or disk is tried again (client queries are interrupted first); any other failure of
the database ends the thread, and with it the service. Never acknowledges before the commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from typing import Final

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.attempts import Starts
from rankmem_aggregator.ingest.batch import IncomingBatch
from rankmem_aggregator.ingest.batch_queue import Outcome, Submission
from rankmem_aggregator.ingest.batch_writer import (
    RETRY_FIRST_S,
    RETRY_MAX_S,
    BatchWriter,
    acknowledged,
    refused,
)
from rankmem_aggregator.ingest.group import concatenated
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

BAD_ROWS: Final = (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError, pa.ArrowException)
"""Errors that rows can cause although they passed every check: of the batch, not of the database."""


class Writer(BatchWriter):
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
        super().__init__(
            config,
            progress=SpoolProgress(stored_progress(store)),
            starts=Starts(stored_starts(store), [one.spool for one in pruned_progress(store)]),
            died=died,
        )
        self._store = store
        self._free_memory = free_memory
        self._stacks = stored_stacks(store)
        self._summaries = Summaries(store)
        self.progress.set_tombstones(pruned_progress(store))
        self._retention = RetentionWorker(
            store, Limits.of(config), deleted=self._add_tombstones, cleaned=self._reload
        )
        self._group_began_s = float("-inf")

    @property
    def num_pruned(self) -> int:
        """Sessions deleted since the start, for the limits on what is kept."""
        return self._retention.num_pruned

    def maintain(self) -> None:
        """Wakes the writer if it has to reopen the instance or to delete sessions. Any thread."""
        if self._retention.is_due or self._store.instance.is_invalidated:
            self.queue.wake()

    def _work(self) -> None:
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
            return [(group[0], refused(group[0], error))]
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
                outcomes.append((submission, refused(submission, exc)))
                if submission.opening is not None:
                    closed.add(submission.opening)
                continue
            outcomes.append((submission, acknowledged(submission)))
            if verdict is Verdict.STORE:
                self.starts.take(submission.batch)
                batches.append(submission.batch)
                accepted.append(self._stacks.replace(submission.batch.rows))
                num_rows += submission.batch.num_rows
        if accepted:
            self._write(concatenated(accepted), self._summaries.invalidate(batches))
        for opening in closed:
            opening.refuse()
        num_refused = sum(outcome.error is not None for _, outcome in outcomes)
        self._observe(batches)
        self._count(
            batches=len(accepted),
            rows=num_rows,
            events=sum(batch.num_events for batch in batches),
            wire_bytes=sum(batch.wire_bytes for batch in batches),
            decoded_bytes=sum(batch.size_bytes for batch in batches),
            refused=num_refused,
            duplicates=len(group) - len(accepted) - num_refused,
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
        self._wait_to_retry(exc, wait_s)

    def _rollback(self) -> None:
        self.progress.rollback()
        self.starts.rollback()
        self._stacks.rollback()
        self._summaries.rollback()
