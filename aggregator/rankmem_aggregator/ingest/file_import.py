"""Imports ranks into a database file that no other process holds: one transaction a recording.

Stage: import's sink beside the Collector service; the process of ``rankmem import``, in the calling thread.
In: the messages that a shipper would send, of all ranks of one recording. Out: all of them stored, or none.
Every check of the service is made here too; a log that is already stored is not stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import duckdb
import pyarrow as pa

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool, declared_bytes, decode_batch
from rankmem_aggregator.ingest.group import concatenated
from rankmem_aggregator.ingest.sequence import SpoolProgress, Verdict
from rankmem_aggregator.ingest.stored_state import (
    progress_rows,
    pruned_progress,
    stored_progress,
    stored_stacks,
)
from rankmem_aggregator.ingest.writer import BAD_ROWS
from rankmem_aggregator.store.disk import DiskLowError
from rankmem_aggregator.store.schema import INGEST_PROGRESS, STACK
from rankmem_aggregator.store.store import open_store
from rankmem_aggregator.summaries.schedule import Summaries
from rankmem_protos.collector_pb2 import Batch, OpenSpool
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.summary_tables import LEVEL_PROGRESS, SUMMARY_PROGRESS
from rankmem_protos.tables import TABLES

GROUP_BYTES: Final = 64 << 20
"""Decoded rows that DuckDB is given at once: small ones take three times the CPU (measured for ingest)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """One rank's log."""

    opening: OpenSpool
    messages: Iterable[Batch]
    """In order, the final one last."""


def check(logs: Sequence[RankLog]) -> None:
    """Decodes the logs as an aggregator that receives them would: what it would refuse is found beforehand.

    Raises:
        RankmemError: INVALID for rows that are wrong.
    """
    for log in logs:
        for _ in _decoded(log, Spool.of(log.opening)):
            pass


class Loader:
    """An open database; a context manager that brings its summaries up to date and closes it.

    Raises:
        RankmemError: as :func:`~rankmem_aggregator.store.store.open_store`.
    """

    def __init__(self, database_path: Path) -> None:
        self._store = open_store(AggregatorConfig.embedded(database_path))
        self._progress = SpoolProgress(stored_progress(self._store))
        self._progress.set_tombstones(pruned_progress(self._store))
        self._stacks = stored_stacks(self._store)
        self._summaries = Summaries(self._store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while kind is None and self._summaries.advance():
                pass
        finally:
            self._store.close()

    def load(self, logs: Sequence[RankLog]) -> bool:
        """Stores the logs, or none of them; False if all were already imported.

        Raises:
            RankmemError: INVALID for rows that are wrong, CONFLICT where a rank was imported from another
                recording, EXHAUSTED where disk or memory do not suffice. Nothing is stored then.
        """
        spools = [Spool.of(log.opening) for log in logs]
        for spool in spools:
            self._check_rank(spool)
        try:
            stored = self._store.write_all(self._groups(logs, spools), _EMPTY)
        except BaseException as exc:
            self._progress.rollback()
            self._stacks.rollback()
            self._summaries.rollback()
            error = _translated(exc)
            if error is exc:
                raise
            raise error from exc
        self._progress.commit()
        self._stacks.commit()
        self._summaries.commit()
        return stored > 0

    def _groups(self, logs: Sequence[RankLog], spools: Sequence[Spool]) -> Iterator[dict[str, pa.Table]]:
        """The rows of all logs, some at a time, followed by the position that each log has reached."""
        batches: list[IncomingBatch] = []
        held_bytes = 0
        for log, spool in zip(logs, spools, strict=True):
            for batch in _decoded(log, spool):
                if self._progress.judge(batch) is Verdict.KNOWN:
                    continue
                batches.append(batch)
                held_bytes += batch.size_bytes
                if held_bytes >= GROUP_BYTES:
                    yield self._group(batches)
                    batches, held_bytes = [], 0
        if batches:
            yield self._group(batches)
        moved = self._progress.tentative()
        if moved:
            last = {INGEST_PROGRESS.name: progress_rows(moved)}
            pending = self._stacks.pending()
            yield last | ({STACK.name: pending} if pending.num_rows else {})

    def _group(self, batches: list[IncomingBatch]) -> dict[str, pa.Table]:
        rows = concatenated([self._stacks.replace(batch.rows) for batch in batches])
        return rows | self._summaries.invalidate(batches)

    def _check_rank(self, spool: Spool) -> None:
        """Raises CONFLICT where the rank was imported from another recording."""
        others = self._store.read(
            "SELECT spool_id FROM ingest_progress WHERE session_id = $session AND attempt = $attempt "
            "AND rank = $rank AND spool_id <> $spool",
            {
                "session": spool.session_id,
                "attempt": spool.attempt,
                "rank": spool.rank,
                "spool": spool.spool_id,
            },
        )
        if others.num_rows:
            raise RankmemError(
                Code.CONFLICT,
                f"session {spool.session_id} has rank {spool.rank} from another recording already",
                "leave --session out, or give the ranks numbers of their own with --rank-from",
            )


_EMPTY: Final = concatenated(
    [{name: table.arrow_schema().empty_table() for name, table in TABLES.items()}]
) | {
    table.name: table.arrow_schema().empty_table()
    for table in (INGEST_PROGRESS, STACK, SUMMARY_PROGRESS, LEVEL_PROGRESS)
}
"""The schema of each table."""


def _decoded(log: RankLog, spool: Spool) -> Iterator[IncomingBatch]:
    for message in log.messages:
        declared_bytes(message)
        yield decode_batch(message, spool)


def _translated(exc: BaseException) -> BaseException:
    if isinstance(exc, BAD_ROWS):
        return RankmemError(Code.INVALID, f"the database did not take the rows: {exc}")
    if isinstance(exc, DiskLowError | duckdb.OutOfMemoryException | duckdb.IOException):
        return RankmemError(
            Code.EXHAUSTED, f"the rows could not be stored: {exc}", "make room and import again"
        )
    return exc
