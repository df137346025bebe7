"""The writer's knowledge of the database: how far each log is stored, its attempt, the stacks' numbers.

Stage: ingest, in the writer's thread, when it is opened and around the deletion of sessions. In: an open
store; out: values of ``sequence``, ``attempts`` and ``stack_ids``, and the rows with the progress of a group.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from rankmem_aggregator.ingest.attempts import StoredStart
from rankmem_aggregator.ingest.batch import Spool
from rankmem_aggregator.ingest.sequence import Progress
from rankmem_aggregator.ingest.stack_ids import StackNumbers
from rankmem_aggregator.store.schema import INGEST_PROGRESS
from rankmem_aggregator.store.store import Store

_PROGRESS: Final = "spool_id, session_id, attempt, rank, last_sequence, final, secret_hash"


def stored_progress(store: Store) -> list[Progress]:
    """How far each log is stored."""
    return _progress_of(store.read(f"SELECT {_PROGRESS} FROM ingest_progress"))


def stored_starts(store: Store) -> list[StoredStart]:
    """The attempt under which each log is stored; an older version has no more than that."""
    rows = store.read(
        "SELECT spool_id, p.session_id, p.attempt, p.rank, declared_attempt, start, launch, final, "
        "updated_ns FROM ingest_progress AS p LEFT JOIN spool_start USING (spool_id) "
        "ORDER BY updated_ns, spool_id"
    )
    return [
        StoredStart(
            spool=Spool(
                spool_id=row["spool_id"],
                session_id=row["session_id"],
                attempt=row["attempt"],
                rank=row["rank"],
                declared_attempt=row["declared_attempt"],
                start=row["start"] or "",
                launch=row["launch"] or "",
            ),
            final=row["final"],
            updated_ns=row["updated_ns"],
        )
        for row in rows.to_pylist()
    ]


def pruned_progress(store: Store) -> list[Progress]:
    """How far each log of a deleted session was stored."""
    return _progress_of(store.read(f"SELECT {_PROGRESS} FROM pruned_spool"))


def _progress_of(rows: pa.Table) -> list[Progress]:
    return [
        Progress(
            spool=Spool(
                spool_id=row["spool_id"],
                session_id=row["session_id"],
                attempt=row["attempt"],
                rank=row["rank"],
                secret_hash=row["secret_hash"] or "",
            ),
            last_sequence=row["last_sequence"],
            final=row["final"],
        )
        for row in rows.to_pylist()
    ]


def stored_stacks(store: Store) -> StackNumbers:
    """The numbers of all stacks."""
    pairs = store.read("SELECT stack_id::BIGINT AS stack_id, stack_hash FROM stack_hash")
    framed = store.read("SELECT DISTINCT stack_id FROM stack_frame")
    return StackNumbers(
        pairs.column("stack_id").to_numpy(),
        pairs.column("stack_hash").to_numpy(),
        framed.column("stack_id").to_numpy(),
    )


def progress_rows(moved: Sequence[Progress], at_ns: int | None = None) -> pa.Table:
    """The rows of ingest_progress for this progress, as of a time; None: now."""
    now_ns = time.time_ns() if at_ns is None else at_ns
    return pa.Table.from_pylist(
        [
            {
                "spool_id": progress.spool.spool_id,
                "session_id": progress.spool.session_id,
                "attempt": progress.spool.attempt,
                "rank": progress.spool.rank,
                "last_sequence": progress.last_sequence,
                "final": progress.final,
                "updated_ns": now_ns,
                "secret_hash": progress.spool.secret_hash or None,
            }
            for progress in moved
        ],
        schema=INGEST_PROGRESS.arrow_schema().remove_metadata(),
    )
