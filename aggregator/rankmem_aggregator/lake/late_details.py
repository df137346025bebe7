"""What a lake has of rows of events that came after their summaries: read from ``availability``.

Stage: ingest, in an aggregator that writes a lake. In: the files that count; out: the first positions of a
spool's stretches that are here. The number ``detail/SPOOL`` in ``lake_progress`` moves with each commit of
some: two aggregators that receive the same stretch see each other there, as with positions (see ``lanes``).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmem_aggregator.ingest.detail_checks import HERE
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.lanes import Lanes
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY


def detail_lane(spool_id: str) -> str:
    """The name of the number of a spool's commits of such rows."""
    return f"detail/{spool_id}"


def stored_firsts(files: LakeFiles, lanes: Lanes, session_id: str, spool_id: str) -> set[int]:
    """The first positions of the stretches that are here now; reads the spool's number, too.

    Raises:
        RankmemError: UNAVAILABLE where the lake cannot be read.
    """
    found: set[int] = set()
    for file in lanes.refresh().of_session(session_id):
        if file.table_name != AVAILABILITY.name:
            continue
        try:
            with files.open_input(file.path) as opened:
                rows = pq.read_table(opened, columns=["spool_id", "place", "sequence_first"])
        except (OSError, pa.ArrowException) as exc:
            raise RankmemError(
                Code.UNAVAILABLE, f"cannot read {files.place(file.path)}: {exc}", "rankmem lake check"
            ) from exc
        is_here = pc.and_(pc.equal(rows["spool_id"], spool_id), pc.equal(rows["place"], HERE))
        found.update(rows.filter(is_here)["sequence_first"].to_pylist())
    lanes.read_number(detail_lane(spool_id))
    return found
