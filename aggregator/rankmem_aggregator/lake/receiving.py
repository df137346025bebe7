"""What an aggregator of a lake has received and not stored: batches in order, and the spools they are of.

Stage: ingest, in the writer's thread; a spool that is opened and a query ask from threads of their own. In:
submissions; out: *received*, as soon as a batch is here in order and answers queries. What others have stored
meanwhile is learned here, and what is here of it dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.attempts import Starts
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.ingest.batch_queue import Submission
from rankmem_aggregator.ingest.batch_writer import BatchWriter, acknowledged, closing, refused
from rankmem_aggregator.ingest.details import StoredDetails
from rankmem_aggregator.ingest.sequence import SpoolProgress, Verdict
from rankmem_aggregator.lake.batch_files import guard_of
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.lanes import Lanes
from rankmem_aggregator.lake.late_details import LateDetails
from rankmem_aggregator.lake.layout import WHOLE, folder_of
from rankmem_aggregator.lake.tail import LiveTail, Tail
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

SOON_S: Final = 1.0
"""After a rank's last batch: others end at the same time, and a launcher waits until all is stored. And after
one of an older shipper or of an import, which keeps no more than a few until they are stored."""


class LakeReceiver(BatchWriter):
    """Receives batches; a subclass stores them.

    Args:
        files: of the lake.
        lanes: what the lake has.
        config: of the aggregator.
        died: stops the service; called from the writer's thread.
    """

    def __init__(
        self,
        files: LakeFiles,
        lanes: Lanes,
        config: AggregatorConfig,
        *,
        died: Callable[[BaseException], None],
    ) -> None:
        super().__init__(config, progress=SpoolProgress(()), starts=Starts(()), died=died)
        self.tail = LiveTail(lanes.catalog)
        """What queries are answered from."""
        self._lanes = lanes
        self._knowing = threading.Lock()
        """What is known of the lake is read and used together: lanes, progress and starts."""
        self._pending: list[Submission] = []
        self._pending_bytes = 0
        self._pending_spools: set[str] = set()
        """Whose records, not only details, are pending."""
        self._repeated: list[Submission] = []  # their rows are pending
        self._due_s = float("inf")
        self._late, self._details = LateDetails(files, lanes), StoredDetails()

    @property
    def takes_details(self) -> bool:
        return True

    @property
    def waits_for(self) -> str:
        return f"the lake is written every {self._config.lake_interval_s:g} s"

    @property
    def unstored_since_ns(self) -> int:
        return min((received.at_ns for received in self.tail.now().batches), default=0)

    def refresh(self) -> None:
        """Learns what others have stored, for queries. Any thread.

        Raises:
            RankmemError: the lake cannot be read.
        """
        with self._knowing:
            catalog = self._lanes.refresh()
            seen = self.tail.now()  # not before: what came and was stored meanwhile would count twice
            is_here_too = self._has_stored(seen)
        if is_here_too:
            self._due_s = 0.0  # others, or a commit under way, have stored some of what is received
            self.queue.wake()
        else:
            self.tail.offer(catalog, seen)

    def _has_stored(self, tail: Tail) -> bool:
        """Whether the files that count now have rows of received batches, too."""
        batches = [received.batch for received in tail.batches]
        first = {b.spool.spool_id: b.sequence_first for b in reversed(batches) if not b.is_details}
        if any(self._lanes.is_passed(spool_id, position) for spool_id, position in first.items()):
            return True
        return bool(self._lanes.moved({guard_of(batch) for batch in batches if batch.is_details}))

    def look_up(self, spool: Spool) -> None:
        folder_of(spool.session_id, WHOLE, WHOLE)
        try:
            with self._knowing:
                self._learn(spool.session_id, [spool.spool_id])
        except RankmemError as exc:
            if is_lasting(exc):
                raise
            # Not the spool's fault: its shipper asks again.
            raise RankmemError(Code.UNAVAILABLE, f"the lake cannot be read now: {exc}", exc.hint) from exc

    def close(self, timeout_s: float) -> bool:
        in_time = super().close(timeout_s) and not self._pending
        for submission in (*self._pending, *self._repeated):
            submission.done(refused(submission, closing()))
        self._pending, self._repeated = [], []
        return in_time

    def _receive(self, submission: Submission) -> None:
        batch, opening = submission.batch, submission.opening
        try:
            with self._knowing:
                if opening is not None:
                    opening.check_writing()
                self.starts.check(batch.spool)
                verdict = self._judged(batch)
                if verdict is Verdict.STORE and not batch.is_details:
                    self._check_not_passed(batch)
                    self.starts.take(batch)
                    self._details.expect(batch)
        except RankmemError as exc:
            if exc.code is Code.CONFLICT and self._pending:
                self._due_s = 0.0  # what came over another call is stored first
            self._refuse(submission, exc)
            return
        if verdict is Verdict.STORE:
            self._add(submission)
        elif self._is_stored(batch):
            self._acknowledge_repeated(submission)
            return
        else:
            self._repeated.append(submission)
        if submission.received is not None:
            submission.received(acknowledged(submission))

    def _judged(self, batch: IncomingBatch) -> Verdict:
        """Whether a batch is new. Raises RankmemError for one that does not follow."""
        if not batch.is_details:
            return self.progress.judge(batch)
        spool = batch.spool
        if not self._details.knows(spool.spool_id):
            self._details.learn(spool.spool_id, *self._late.look_up(spool.session_id, spool.spool_id))
        elif not self._details.has_summary(batch):
            # Another aggregator may have stored it. What is here is not read again: its number guards what
            # is pending.
            found = self._late.summaries(spool.session_id, spool.spool_id)
            self._details.learn_summaries(spool.spool_id, found)
        return self._details.judge(batch, self.progress.stored(spool))

    def _is_stored(self, batch: IncomingBatch) -> bool:
        return (self._details if batch.is_details else self.progress).is_stored(batch)

    def _check_not_passed(self, batch: IncomingBatch) -> None:
        """Raises RankmemError where others have stored more of a spool of which nothing is pending here."""
        spool = batch.spool
        if spool.spool_id in self._pending_spools:
            return  # seen to with its first batch, and by refresh
        if self._lanes.is_passed(spool.spool_id, batch.sequence_first):
            self.progress.drop(spool.spool_id)
            raise dropped(spool)

    def _add(self, submission: Submission) -> None:
        batch, now_s = submission.batch, time.monotonic()
        if not self._pending:
            self._due_s = now_s + self._config.lake_interval_s
        if batch.final or submission.received is None:
            self._due_s = min(self._due_s, now_s + SOON_S)
        self._pending.append(submission)
        if not batch.is_details:
            self._pending_spools.add(batch.spool.spool_id)
        self._pending_bytes += batch.size_bytes
        self.tail.add(batch)
        if batch.is_details:
            return  # of records that were counted with their summary, which may be hours old
        self._observe([batch])

    def _refuse(self, submission: Submission, error: RankmemError) -> None:
        self.errors.add("ingest", error.code)
        self._count(refused=1)
        if submission.opening is not None:
            submission.opening.refuse()
        submission.done(refused(submission, error))

    def _acknowledge_repeated(self, submission: Submission) -> None:
        self._count(duplicates=1)
        submission.done(acknowledged(submission))

    def _is_due(self) -> bool:
        is_much = self._pending_bytes >= self._config.lake_batch_bytes
        return bool(self._pending) and (is_much or time.monotonic() >= self._due_s)

    def _displaced(self) -> set[str]:
        """Spools whose rank of an attempt is another's by now."""
        found: set[str] = set()
        for spool in {s.batch.spool.spool_id: s.batch.spool for s in self._pending}.values():
            try:
                self.starts.check(spool)
            except RankmemError:
                found.add(spool.spool_id)
        return found

    def _drop(self, spool_ids: set[str], error: RankmemError | None = None) -> None:
        """Refuses what is pending of these spools; their shippers send it again from what is stored."""
        gone = [s for s in self._pending if s.batch.spool.spool_id in spool_ids]
        if not gone:
            return
        self._pending = [s for s in self._pending if s.batch.spool.spool_id not in spool_ids]
        self._pending_bytes = sum(s.batch.size_bytes for s in self._pending)
        self._pending_spools -= spool_ids
        for spool_id in spool_ids:
            self.progress.drop(spool_id)
            self._details.forget(spool_id)
            self.starts.drop(spool_id)
        self.tail.replace(self._lanes.catalog, spool_ids)
        for submission in gone:
            self._refuse(submission, error or dropped(submission.batch.spool))
        logger.warning(
            "%d received batches of %s are dropped: %s",
            len(gone),
            ", ".join(sorted(spool_ids)),
            error or dropped(gone[0].batch.spool),
        )

    def _learn(self, session_id: str, spool_ids: Iterable[str]) -> None:
        known = self._lanes.look_up(session_id, spool_ids)
        self.progress.learn(known.progress)
        self.starts.learn(known.starts)


def is_lasting(exc: Exception) -> bool:
    """Whether waiting does not help: the lake is a newer version's, or the session was deleted."""
    return isinstance(exc, RankmemError) and exc.code in (Code.UNSUPPORTED, Code.NOT_FOUND)


def dropped(spool: Spool) -> RankmemError:
    return RankmemError(
        Code.CONFLICT,
        f"spool {spool.spool_id} is stored by another aggregator",
        "open the spool again; its state has the last position stored",
    )
