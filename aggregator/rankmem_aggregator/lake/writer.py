"""The writer of an aggregator that writes a lake: receives batches, stores many of them at once.

Stage: ingest. In: submissions from many ingest calls; out: two outcomes for each: *received* (it is in
memory, in order, and answers queries here) and *stored* (it is in the lake). After some seconds, or once they
are many, the received batches become one file a table, and one commit of ``lake_progress`` makes all of them
count. With them it moves the number of each spool (see ``lanes``): any number of aggregators may receive the
same spool, one stores it, the others drop what they have of it, and their shippers send again from there.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.attempts import Starts
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.ingest.batch_queue import Submission
from rankmem_aggregator.ingest.batch_writer import (
    RETRY_FIRST_S,
    RETRY_MAX_S,
    BatchWriter,
    acknowledged,
    closing,
    refused,
)
from rankmem_aggregator.ingest.details import StoredDetails
from rankmem_aggregator.ingest.sequence import SpoolProgress, Verdict
from rankmem_aggregator.lake.batch_files import Prepared, check_writable, guard_of, prepared
from rankmem_aggregator.lake.commits import Commits
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.lanes import Lanes, lane
from rankmem_aggregator.lake.late_details import LateDetails, detail_lane
from rankmem_aggregator.lake.layout import WHOLE, DataFile, folder_of
from rankmem_aggregator.lake.moves import MovedElsewhereError
from rankmem_aggregator.lake.tail import LiveTail
from rankmem_aggregator.retention.limits import NS_PER_S
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)
T = TypeVar("T")

SOON_S: Final = 1.0
"""After a rank's last batch: others end at the same time, and a launcher waits until all is stored. And after
one of an older shipper or of an import, which keeps no more than a few until they are stored."""
WRITER_PREFIX: Final = "serve:"


class LakeWriter(BatchWriter):
    """Writes one lake from :meth:`start` to :meth:`close`.

    Args:
        files: the lake.
        lanes: what it has.
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
        self._writer = f"{WRITER_PREFIX}{uuid.uuid4().hex}"
        self._commits = Commits(files, self._writer)
        self._lanes = lanes
        self._knowing = threading.Lock()
        """What is known of the lake is read and used together: lanes, progress and starts."""
        self._pending: list[Submission] = []
        self._pending_bytes = 0
        self._repeated: list[Submission] = []  # their rows are pending
        self._due_s = float("inf")
        self._known_stacks: set[int] = set()
        self._late, self._details = LateDetails(files, lanes), StoredDetails()

    @property
    def takes_details(self) -> bool:
        return True

    @property
    def waits_for(self) -> str:
        return f"the lake is written every {self._config.lake_interval_s:g} s"

    def refresh(self) -> None:
        """Learns what others have stored, for queries. Any thread.

        Raises:
            RankmemError: the lake cannot be read.
        """
        batches = self.tail.now().batches
        with self._knowing:
            catalog = self._lanes.refresh()
            moved = self._lanes.moved({guard_of(received.batch) for received in batches})
        if moved:
            self._due_s = 0.0  # what others, or a commit under way, have stored of these is here, too
        else:
            self.tail.offer(catalog)

    def look_up(self, spool: Spool) -> None:
        folder_of(spool.session_id, WHOLE, WHOLE)
        try:
            with self._knowing:
                self._learn(spool.session_id, [spool.spool_id])
        except RankmemError as exc:
            if _is_lasting(exc):
                raise
            # Not the spool's fault: its shipper asks again.
            raise RankmemError(Code.UNAVAILABLE, f"the lake cannot be read now: {exc}", exc.hint) from exc

    def close(self, timeout_s: float) -> bool:
        in_time = super().close(timeout_s) and not self._pending
        for submission in (*self._pending, *self._repeated):
            submission.done(refused(submission, closing()))
        self._pending, self._repeated = [], []
        if in_time:
            self._commits.wait()
        self._commits.close()
        return in_time

    def _work(self) -> None:
        is_open = True
        while is_open:
            group = self.queue.take(
                rows_max=self._config.group_rows_max,
                bytes_max=self._config.group_bytes_max,
                wait_s=0.0,
                idle_s=max(0.0, self._due_s - time.monotonic()) if self._pending else None,
            )
            is_open = group is not None
            for submission in group or ():
                self._receive(submission)
            if not is_open or self._is_due():
                self._store()

    # -- received --------------------------------------------------------------------------------

    def _receive(self, submission: Submission) -> None:
        batch, opening = submission.batch, submission.opening
        try:
            with self._knowing:
                if opening is not None:
                    opening.check_writing()
                self.starts.check(batch.spool)
                verdict = self._judged(batch)
                if verdict is Verdict.STORE and not batch.is_details:
                    self.starts.take(batch)
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
            firsts = self._late.firsts(spool.session_id, spool.spool_id)
            self._details.learn(spool.spool_id, firsts)
        return self._details.judge(batch, self.progress.reached(spool))

    def _is_stored(self, batch: IncomingBatch) -> bool:
        return (self._details if batch.is_details else self.progress).is_stored(batch)

    def _add(self, submission: Submission) -> None:
        batch, now_s = submission.batch, time.monotonic()
        if not self._pending:
            self._due_s = now_s + self._config.lake_interval_s
        if batch.final or submission.received is None:
            self._due_s = min(self._due_s, now_s + SOON_S)
        self._pending.append(submission)
        self._pending_bytes += batch.size_bytes
        self.tail.add(batch)
        for lag_ns in self.liveness.stored([batch]):
            self.lag_seconds.observe(lag_ns / NS_PER_S)

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

    # -- stored ----------------------------------------------------------------------------------

    def _store(self) -> None:
        """Stores what is pending, but for spools that another aggregator has taken."""
        while self._pending:
            try:
                what = self._prepared()
                if what is None:
                    continue
                files = self._until_it_works(partial(self._commits.write, what))
            except pa.ArrowException:
                self._drop_unwritable()
                continue
            started_s = time.monotonic()
            try:
                self._until_it_works(partial(self._commits.commit, what, files))
            except MovedElsewhereError as exc:
                self._commits.remove(files)
                self._until_it_works(partial(self._lost, exc.names))
                continue
            self.commit_seconds.observe(time.monotonic() - started_s)
            self._stored(what, files)
        self._due_s = float("inf")
        repeated, self._repeated = self._repeated, []
        for submission in repeated:
            if self._is_stored(submission.batch):
                self._acknowledge_repeated(submission)
            else:
                self._refuse(submission, _dropped(submission.batch.spool))

    def _until_it_works(self, act: Callable[[], T]) -> T:
        """The result of ``act``, which is tried again while the store is away."""
        from deltalake.exceptions import DeltaError

        wait_s = RETRY_FIRST_S
        while True:
            try:
                result = act()
            except (OSError, DeltaError, RankmemError) as exc:
                if isinstance(exc, MovedElsewhereError) or _is_lasting(exc):
                    raise
                self.stalled = exc
                self._wait_to_retry(exc, wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
            else:
                self.stalled = None
                return result

    def _prepared(self) -> Prepared | None:
        """What is to be stored; None where some of it was dropped instead."""
        batches = [submission.batch for submission in self._pending]
        with self._knowing:
            if displaced := self._displaced():
                self._drop(displaced)
                return None
            return prepared(
                batches,
                self.progress.tentative(),
                self.starts.rows(),
                self._lanes,
                writer=self._writer,
                known_stacks=self._known_stacks,
            )

    def _stored(self, what: Prepared, files: list[DataFile]) -> None:
        """The commit is made."""
        submissions, self._pending, self._pending_bytes = self._pending, [], 0
        with self._knowing:
            catalog = self._until_it_works(self._lanes.refresh)
            self._lanes.numbers |= {name: move.after for name, move in what.moves.items()}
            self.progress.commit()
            self._details.commit()
            self.starts.commit()
            self.tail.replace(catalog)
        self._known_stacks |= what.stacks
        batches = [submission.batch for submission in submissions]
        self._count(
            groups=1,
            batches=len(batches),
            rows=sum(batch.num_rows for batch in batches),
            events=sum(batch.num_events for batch in batches),
            wire_bytes=sum(batch.wire_bytes for batch in batches),
            decoded_bytes=sum(batch.size_bytes for batch in batches),
        )
        for submission in submissions:
            submission.done(acknowledged(submission))
        self._commits.log(files)

    # -- dropped ---------------------------------------------------------------------------------

    def _lost(self, names: Iterable[str]) -> None:
        """Others have moved these numbers: what they stored counts, what is here of it is dropped."""
        by_session: dict[str, set[str]] = {}
        for submission in self._pending:
            spool = submission.batch.spool
            by_session.setdefault(spool.session_id, set()).add(spool.spool_id)
        with self._knowing:
            for session_id, spool_ids in by_session.items():
                self._drop({s for s in spool_ids if not {lane(s), detail_lane(s)}.isdisjoint(names)})
                try:
                    self._learn(session_id, spool_ids)
                except RankmemError as exc:
                    if exc.code is not Code.NOT_FOUND:
                        raise
                    self._drop(spool_ids, exc)

    def _displaced(self) -> set[str]:
        """Spools whose rank of an attempt is another's by now."""
        found: set[str] = set()
        for spool in {s.batch.spool.spool_id: s.batch.spool for s in self._pending}.values():
            try:
                self.starts.check(spool)
            except RankmemError:
                found.add(spool.spool_id)
        return found

    def _drop_unwritable(self) -> None:
        """Refuses batches whose rows no file can have, although they passed every check."""
        for submission in self._pending:
            try:
                check_writable(submission.batch)
            except pa.ArrowException as exc:
                error = RankmemError(Code.INVALID, f"the lake rejected the rows of the batch: {exc}")
                with self._knowing:
                    self._drop({submission.batch.spool.spool_id}, error)
                return
        raise RuntimeError("rows cannot be written, and no batch is at fault")

    def _drop(self, spool_ids: set[str], error: RankmemError | None = None) -> None:
        """Refuses what is pending of these spools; their shippers send it again from what is stored."""
        gone = [s for s in self._pending if s.batch.spool.spool_id in spool_ids]
        if not gone:
            return
        self._pending = [s for s in self._pending if s.batch.spool.spool_id not in spool_ids]
        self._pending_bytes = sum(s.batch.size_bytes for s in self._pending)
        for spool_id in spool_ids:
            self.progress.drop(spool_id)
            self._details.forget(spool_id)
            self.starts.drop(spool_id)
        self.tail.replace(self._lanes.catalog, spool_ids)
        for submission in gone:
            self._refuse(submission, error or _dropped(submission.batch.spool))
        logger.warning(
            "%d received batches of %s are dropped: %s",
            len(gone),
            ", ".join(sorted(spool_ids)),
            error or _dropped(gone[0].batch.spool),
        )

    def _learn(self, session_id: str, spool_ids: Iterable[str]) -> None:
        known = self._lanes.look_up(session_id, spool_ids)
        self.progress.learn(known.progress)
        self.starts.learn(known.starts)


def _is_lasting(exc: Exception) -> bool:
    """Whether waiting does not help: the lake is a newer version's, or the session was deleted."""
    return isinstance(exc, RankmemError) and exc.code in (Code.UNSUPPORTED, Code.NOT_FOUND)


def _dropped(spool: Spool) -> RankmemError:
    return RankmemError(
        Code.CONFLICT,
        f"spool {spool.spool_id} is stored by another aggregator",
        "open the spool again; its state has the last position stored",
    )
