"""What a lake has of each spool: how far it is stored, as which attempt, and the number that guards it.

Stage: ingest, in an aggregator that writes a lake. In: the rows of ``ingest_progress`` and ``spool_start``
in the files that count; out: the values of ``ingest.sequence`` and ``ingest.attempts``. Any number of
aggregators write one lake, so this is read again whenever a spool is opened, and after a commit was refused.
A file is read once.

A *lane* is a spool's way into the lake. Its number in ``lake_progress`` is the position behind its last
stored record; a commit that stores more of it moves that number, and is refused where another aggregator has
moved it. ``spools/SESSION`` counts commits with spools that are new in the session: two aggregators that give
an attempt at the same time see each other there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rankmem_aggregator.ingest.attempts import StoredStart
from rankmem_aggregator.ingest.batch import Spool
from rankmem_aggregator.ingest.sequence import Progress, session_deleted
from rankmem_aggregator.lake.catalog import Catalog, made_progress, read_catalog
from rankmem_aggregator.lake.files import LakeFiles, said_by_store
from rankmem_aggregator.lake.layout import LAKE_PROGRESS, DataFile
from rankmem_aggregator.query.file_faults import unread_file
from rankmem_aggregator.store.schema import INGEST_PROGRESS, PRUNED_SPOOL, SPOOL_START

PRUNED_NUMBER: Final = 1 << 62
"""Of lanes and sessions that were pruned: above every position."""


def lane(spool_id: str) -> str:
    """The name of a spool's number."""
    return f"lane/{spool_id}"


def spools_of(session_id: str) -> str:
    """The name of a session's number."""
    return f"spools/{session_id}"


@dataclass(frozen=True, slots=True)
class KnownSpools:
    """The spools of a session that a lake has."""

    progress: list[Progress]
    starts: list[StoredStart]


class Lanes:
    """The spools of a lake's sessions, as far as they were looked up. One thread at a time.

    Args:
        files: the lake; its table lake_progress is made where there is none.
    """

    def __init__(self, files: LakeFiles) -> None:
        self._files = files
        self._opened = made_progress(files)
        self.catalog = read_catalog(files, version=self._opened.version())
        """The files that count, as last read."""
        self.numbers: dict[str, int] = {}
        """Of lanes and sessions, as last read, or moved to."""
        self._read: set[str] = set()
        """Paths of files that were read."""
        self._starts: dict[str, dict[str, Any]] = {}
        """Rows of spool_start by spool."""
        self._progress: dict[str, dict[str, dict[str, Any]]] = {}
        """Rows of ingest_progress, the last of each spool, by session and spool."""

    @property
    def lake_id(self) -> str:
        """Names the lake, whoever serves it."""
        return str(self._opened.metadata().id).replace("-", "")

    def refresh(self) -> Catalog:
        """Reads which files count now, if that has changed.

        Raises:
            RankmemError: the lake cannot be read.
        """
        with self._files.reading_log(LAKE_PROGRESS.name):
            self._opened.update_incremental()
        if self._opened.version() != self.catalog.version:
            self.catalog = read_catalog(self._files, version=self._opened.version())
        return self.catalog

    def look_up(self, session_id: str, spool_ids: Iterable[str]) -> KnownSpools:
        """The spools of a session that are stored now; reads the numbers of these, too.

        Raises:
            RankmemError: the lake cannot be read; NOT_FOUND for one whose session was deleted.
        """
        of_session = self.refresh().of_session(session_id)
        if any(file.table_name == PRUNED_SPOOL.name for file in of_session):
            raise session_deleted(session_id)
        progress = self._progress.setdefault(session_id, {})
        for row in self._new_rows(of_session, SPOOL_START.name):
            self._starts[row["spool_id"]] = row
        for row in self._new_rows(of_session, INGEST_PROGRESS.name):
            known = progress.get(row["spool_id"])
            if known is None or known["last_sequence"] <= row["last_sequence"]:
                progress[row["spool_id"]] = row
        self.read_number(spools_of(session_id))
        for spool_id in spool_ids:
            position = progress[spool_id]["last_sequence"] + 1 if spool_id in progress else 0
            if self.read_number(lane(spool_id)) > position:
                raise session_deleted(session_id)
        found = [self._known(row) for row in progress.values()]
        return KnownSpools([known for known, _ in found], [start for _, start in found])

    def moved(self, names: Iterable[str]) -> set[str]:
        """Those of these numbers that others have moved since they were read, as of :meth:`refresh`."""
        return {name for name in names if name in self.numbers and self._number(name) != self.numbers[name]}

    def is_passed(self, spool_id: str, position: int) -> bool:
        """Whether records of a spool from a position on count already, as of :meth:`refresh`.

        A spool without a number is new, or an import of an older version has brought what came before.
        """
        return self._number(lane(spool_id)) not in (0, position)

    def read_number(self, name: str) -> int:
        """A number as it is now, as of :meth:`refresh`."""
        self.numbers[name] = self._number(name)
        return self.numbers[name]

    def _number(self, name: str) -> int:
        return int(self._opened.transaction_version(name) or 0)

    def _new_rows(self, of_session: list[DataFile], table: str) -> list[dict[str, Any]]:
        files = [f for f in of_session if f.table_name == table and f.path not in self._read]
        found: list[dict[str, Any]] = []
        for file in sorted(files, key=lambda f: f.path.rpartition("/")[2]):
            try:
                with self._files.open_input(file.path) as opened:
                    found += pq.read_table(opened).to_pylist()
            except (OSError, pa.ArrowException) as exc:
                raise unread_file(self._files.place(file.path), said_by_store(exc)) from exc
        self._read |= {file.path for file in files}
        return found

    def _known(self, row: dict[str, Any]) -> tuple[Progress, StoredStart]:
        start = self._starts.get(row["spool_id"], {})
        spool = Spool(
            spool_id=row["spool_id"],
            session_id=row["session_id"],
            attempt=row["attempt"],
            rank=row["rank"],
            declared_attempt=start.get("declared_attempt"),
            start=start.get("start") or "",
            launch=start.get("launch") or "",
            secret_hash=row["secret_hash"] or "",
        )
        return (
            Progress(spool=spool, last_sequence=row["last_sequence"], final=row["final"]),
            StoredStart(spool=spool, final=row["final"], updated_ns=row["updated_ns"]),
        )
