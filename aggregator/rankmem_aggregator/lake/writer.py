"""The writer of an aggregator that writes a lake: stores many received batches at once.

Stage: ingest. In: submissions from many ingest calls, as ``receiving`` has them; out: *stored* (it is in the
lake) for each. After some seconds, or once they are many, the received batches become one file a table, and
one commit of ``lake_progress`` makes all of them count. With them it moves the number of each spool (see
``lanes``): any number of aggregators may receive the same spool, one stores it, the others drop what they
have of it, and their shippers send again from there.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch_writer import (
    RETRY_FIRST_S,
    RETRY_MAX_S,
    acknowledged,
)
from rankmem_aggregator.lake.batch_files import Prepared, check_writable, prepared
from rankmem_aggregator.lake.commits import Commits
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.lanes import Lanes, lane
from rankmem_aggregator.lake.late_details import detail_lane
from rankmem_aggregator.lake.layout import DataFile
from rankmem_aggregator.lake.moves import MovedElsewhereError
from rankmem_aggregator.lake.receiving import LakeReceiver, dropped, is_lasting
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)
T = TypeVar("T")

WRITER_PREFIX: Final = "serve:"


class LakeWriter(LakeReceiver):
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
        super().__init__(files, lanes, config, died=died)
        self._writer = f"{WRITER_PREFIX}{uuid.uuid4().hex}"
        self._commits = Commits(files, self._writer)
        self._known_stacks: set[int] = set()

    def close(self, timeout_s: float) -> bool:
        in_time = super().close(timeout_s)
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
                self._refuse(submission, dropped(submission.batch.spool))

    def _until_it_works(self, act: Callable[[], T]) -> T:
        """The result of ``act``, which is tried again while the store is away."""
        from deltalake.exceptions import DeltaError

        wait_s = RETRY_FIRST_S
        while True:
            try:
                result = act()
            except (OSError, DeltaError, RankmemError) as exc:
                if isinstance(exc, MovedElsewhereError) or is_lasting(exc):
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
        self._until_it_works(self._refresh_lanes)
        submissions, self._pending, self._pending_bytes = self._pending, [], 0
        self._pending_spools.clear()
        with self._knowing:
            catalog = self._lanes.catalog
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

    def _refresh_lanes(self) -> None:
        with self._knowing:  # not while it is retried: a query's refresh takes its turn
            self._lanes.refresh()

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
