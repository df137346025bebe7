"""What a lake has of rows of events that came after their summaries: read from ``availability``.

Stage: ingest, in an aggregator that writes a lake. In: the files that count; out: the ranges of a spool's
stretches that stayed on its host, and of those that are here. The number ``detail/SPOOL`` in
``lake_progress`` moves with each commit of some: two aggregators that receive the same stretch see each
other there, as with positions (see ``lanes``). A file is read once.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from rankmem_aggregator.ingest.detail_checks import HERE, HOST
from rankmem_aggregator.ingest.details import Range
from rankmem_aggregator.ingest.sequence import session_deleted
from rankmem_aggregator.lake.files import LakeFiles, said_by_store
from rankmem_aggregator.lake.lanes import Lanes
from rankmem_aggregator.lake.layout import DataFile
from rankmem_aggregator.store.schema import PRUNED_SPOOL
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY


def detail_lane(spool_id: str) -> str:
    """The name of the number of a spool's commits of such rows."""
    return f"detail/{spool_id}"


class LateDetails:
    """The stretches that stayed on hosts, and those that came, of sessions of which some came. One thread at
    a time.

    Args:
        files: the lake.
        lanes: what it has.
    """

    def __init__(self, files: LakeFiles, lanes: Lanes) -> None:
        self._files, self._lanes = files, lanes
        self._read: set[str] = set()  # paths
        self._ranges: dict[str, dict[str, set[Range]]] = {HOST: {}, HERE: {}}  # by place and spool

    def summaries(self, session_id: str, spool_id: str) -> set[Range]:
        """The stretches of a spool that stayed on its host at first, as the lake has them now.

        Raises:
            RankmemError: UNAVAILABLE where the lake cannot be read now, UNSUPPORTED where it is a newer
                version's, NOT_FOUND where the session was deleted.
        """
        try:
            of_session = self._lanes.refresh().of_session(session_id)
            for file in of_session:
                if file.table_name == AVAILABILITY.name and file.path not in self._read:
                    self._add(file)
        except RankmemError as exc:
            if exc.code is Code.UNSUPPORTED:
                raise
            # Not the batch's fault: its shipper sends it again.
            raise RankmemError(Code.UNAVAILABLE, f"the lake cannot be read now: {exc}", exc.hint) from exc
        if any(file.table_name == PRUNED_SPOOL.name for file in of_session):
            raise session_deleted(session_id)
        return self._ranges[HOST].get(spool_id, set())

    def look_up(self, session_id: str, spool_id: str) -> tuple[set[Range], set[Range]]:
        """The same, and those of them that are here; reads the spool's number, too, which guards these.

        Raises:
            RankmemError: as :meth:`summaries`.
        """
        summaries = self.summaries(session_id, spool_id)
        self._lanes.read_number(detail_lane(spool_id))
        return summaries, self._ranges[HERE].get(spool_id, set())

    def _add(self, file: DataFile) -> None:
        try:
            with self._files.open_input(file.path) as opened:
                rows = pq.read_table(opened, columns=["spool_id", "place", "sequence_first", "sequence_last"])
        except (OSError, pa.ArrowException) as exc:
            raise RankmemError(
                Code.UNAVAILABLE,
                f"cannot read {self._files.place(file.path)}: {said_by_store(exc)}",
                "rankmem lake check",
            ) from exc
        columns = (rows[name].to_pylist() for name in rows.column_names)
        for spool_id, place, first, last in zip(*columns, strict=True):
            if place in self._ranges:
                self._ranges[place].setdefault(spool_id, set()).add((first, last))
        self._read.add(file.path)
