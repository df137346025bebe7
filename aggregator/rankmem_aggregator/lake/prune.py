"""``rankmem lake prune``: takes old sessions out of a lake.

Stage: maintenance, in the process of the command line. In: the limits; out: sessions gone, oldest first, each
with one commit of ``lake_progress``. It leaves rows of ``pruned_spool``, as a database does: how far each log
was stored, so that none of it is stored again. Readers of the version before keep it; ``vacuum`` deletes the
files a day later. Stacks, hosts and clock offsets stay: other sessions may have the same.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.lake.catalog import Catalog, exchange_progress, read_catalog
from rankmem_aggregator.lake.cutting import Part
from rankmem_aggregator.lake.delta import exchange_in_logs
from rankmem_aggregator.lake.files import LakeFiles, writing
from rankmem_aggregator.lake.lanes import PRUNED_NUMBER, lane, spools_of
from rankmem_aggregator.lake.late_details import detail_lane
from rankmem_aggregator.lake.layout import DIGEST_DIGITS, DataFile
from rankmem_aggregator.lake.part_files import Authorship, write_part
from rankmem_aggregator.lake.queries import LakeQueries
from rankmem_aggregator.lake.sessions import stored_sessions
from rankmem_aggregator.retention.delete import REMEMBERED_DAYS
from rankmem_aggregator.retention.limits import (
    NS_PER_DAY,
    Limits,
    StoredSession,
    check_over,
    sessions_due,
)
from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store.schema import PRUNED_SPOOL
from rankmem_protos.errors import Code, RankmemError

WRITER: Final = "prune"
_SPOOLS: Final = """
SELECT DISTINCT spool_id FROM ingest_progress
WHERE session_id = $session
ORDER BY spool_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedLake:
    """The result of :func:`prune_lake`."""

    session_ids: tuple[str, ...]
    """Gone, oldest first."""
    num_kept: int
    """Remaining sessions."""
    num_running: int
    """Of these, sessions that may still be running."""
    bytes_before: int
    """Of the files that count."""
    bytes_after: int


def prune_lake(address: str, limits: Limits, session_ids: Sequence[str] = ()) -> PrunedLake:
    """Takes sessions out of a lake.

    Args:
        address: see :class:`LakeFiles`.
        limits: what is kept; sessions that may still be running stay.
        session_ids: gone as well, whatever the limits.

    Raises:
        RankmemError: as :func:`read_catalog`; NOT_FOUND for an unknown session; CONFLICT for one that may
            be running, or that another process has changed; EXHAUSTED where the lake cannot be written.
    """
    files = LakeFiles(address)
    now_ns = time.time_ns()
    with writing(files):
        catalog = read_catalog(files)
        with LakeQueries(address, version=catalog.version) as queries:
            stored = stored_sessions(queries)
            check_over(stored, session_ids, now_ns=now_ns, place=files.root)
            gone = _gone(catalog, stored, limits, session_ids, now_ns)
            for session_id in gone:
                _prune(files, catalog, queries, session_id, now_ns)
            _forget(files, catalog, queries, now_ns)
        after = read_catalog(files)
    kept = [session for session in stored if session.session_id not in gone]
    return PrunedLake(
        session_ids=tuple(gone),
        num_kept=len(kept),
        num_running=sum(not session.is_over(now_ns) for session in kept),
        bytes_before=_size(catalog.files),
        bytes_after=_size(after.files),
    )


def _gone(
    catalog: Catalog,
    stored: Sequence[StoredSession],
    limits: Limits,
    session_ids: Sequence[str],
    now_ns: int,
) -> list[str]:
    """The sessions to prune, oldest first, those that were asked for in front."""
    gone = list(dict.fromkeys(session_ids))
    while True:
        left = [session for session in stored if session.session_id not in gone]
        used_bytes = _size(file for file in catalog.files if file.session_id not in gone)
        due = sessions_due(left, limits, now_ns=now_ns, used_bytes=used_bytes)
        if not due:
            return gone
        gone += [session.session_id for session in due]


def _prune(files: LakeFiles, catalog: Catalog, queries: LakeQueries, session_id: str, now_ns: int) -> None:
    part = Part(
        session_id=session_id,
        statement=statement_text("prune", "tombstones"),
        parameters={"session": session_id, "now_ns": now_ns},
    )
    old = catalog.of_session(session_id)
    sequence = 1 + max(file.sequence for file in old)
    by = Authorship(writer=WRITER, sequence=sequence, state=secrets.token_hex(DIGEST_DIGITS // 2))
    rows = queries.stream(part.statement, part.parameters)
    new = write_part(files, PRUNED_SPOOL, part, rows, by)
    # An aggregator that has received more of these, or takes them up later, is refused.
    spools = queries.sql(_SPOOLS, {"session": session_id})["spool_id"].to_pylist()
    lanes = (*map(lane, spools), *map(detail_lane, spools))
    numbers = dict.fromkeys((spools_of(session_id), *lanes), PRUNED_NUMBER)
    if new is None or not exchange_progress(files, old, [new], whole_session=True, numbers=numbers):
        raise RankmemError(
            Code.CONFLICT,
            f"session {session_id} was changed by another process meanwhile: it is as it was",
            "give the command again",
        )
    exchange_in_logs(files, old, [new])


def _forget(files: LakeFiles, catalog: Catalog, queries: LakeQueries, now_ns: int) -> None:
    """Drops what is remembered of sessions that were pruned long ago, as a database does."""
    rows = queries.sql(statement_text("prune", "tombstone_times")).to_pylist()
    before_ns = now_ns - int(REMEMBERED_DAYS * NS_PER_DAY)
    due = {row["session_id"] for row in rows if row["pruned_ns"] < before_ns}
    old = [file for file in catalog.of_table(PRUNED_SPOOL.name) if file.session_id in due]
    if old and exchange_progress(files, old, ()):
        exchange_in_logs(files, old, ())


def _size(files: Iterable[DataFile]) -> int:
    return sum(file.size_bytes for file in files)
