"""What a lake has of rows of events that came after their summaries: read from ``availability``.

Stage: ingest, in an aggregator that writes a lake. In: the files that count; out: the first positions of a
spool's stretches that are here. The number ``detail/SPOOL`` in ``lake_progress`` moves with each commit of
some: two aggregators that receive the same stretch see each other there, as with positions (see ``lanes``).
A file is read once.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmem_aggregator.ingest.detail_checks import HERE
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.lanes import Lanes
from rankmem_aggregator.lake.layout import DataFile
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY


def detail_lane(spool_id: str) -> str:
    """The name of the number of a spool's commits of such rows."""
    return f"detail/{spool_id}"


class LateDetails:
    """The stretches that are here, of the sessions of which some came. One thread at a time.

    Args:
        files: the lake.
        lanes: what it has.
    """

    def __init__(self, files: LakeFiles, lanes: Lanes) -> None:
        self._files, self._lanes = files, lanes
        self._read: set[str] = set()  # paths
        self._here: dict[str, set[int]] = {}  # first positions by spool

    def firsts(self, session_id: str, spool_id: str) -> set[int]:
        """The first positions of a spool's stretches that are here now; reads the spool's number, too.

        Raises:
            RankmemError: UNAVAILABLE where the lake cannot be read.
        """
        for file in self._lanes.refresh().of_session(session_id):
            if file.table_name == AVAILABILITY.name and file.path not in self._read:
                self._add(file)
        self._lanes.read_number(detail_lane(spool_id))
        return self._here.get(spool_id, set())

    def _add(self, file: DataFile) -> None:
        try:
            with self._files.open_input(file.path) as opened:
                rows = pq.read_table(opened, columns=["spool_id", "place", "sequence_first"])
        except (OSError, pa.ArrowException) as exc:
            raise RankmemError(
                Code.UNAVAILABLE, f"cannot read {self._files.place(file.path)}: {exc}", "rankmem lake check"
            ) from exc
        here = rows.filter(pc.equal(rows["place"], HERE))
        for spool_id, first in zip(
            here["spool_id"].to_pylist(), here["sequence_first"].to_pylist(), strict=True
        ):
            self._here.setdefault(spool_id, set()).add(first)
        self._read.add(file.path)
