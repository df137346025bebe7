"""Whether a batch without its rows of events, or one that brings them later, is one that may be stored.

Stage: between ingest call and writer, in a decoding thread. In: a message and its decoded rows; out: nothing,
or a refusal. The row of ``availability`` in it says which of the two it is, and is of its own range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from rankmem_protos.collector_pb2 import Batch
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY, DETAIL_TABLES

HOST: Final = "host"
HERE: Final = "here"
GONE: Final = "gone"
"""In ``availability.place``."""
_COLUMNS: Final = ["sequence_first", "sequence_last", "place"]


def check_details(message: Batch, rows: Mapping[str, pa.Table], *, takes_details: bool) -> None:
    """Checks that rows of availability, and tables of a batch with details, are what they may be.

    Raises:
        RankmemError: INVALID, or UNSUPPORTED where this aggregator takes none.
    """
    where = rows.get(AVAILABILITY.name)
    if where is None and not message.details:
        return
    if not takes_details:
        raise RankmemError(
            Code.UNSUPPORTED,
            "the batch has rows of availability: this aggregator takes no summaries without their rows",
            "send all rows, or send to an aggregator of a lake",
        )
    places = {HERE, GONE} if message.details else {HOST}
    mine = (message.sequence_first, message.sequence_last)
    found = [] if where is None else where.select(_COLUMNS).to_pylist()
    if len(found) != 1 or tuple(found[0].values())[:2] != mine or found[0]["place"] not in places:
        raise RankmemError(
            Code.INVALID, f"the batch [{mine[0]}, {mine[1]}] needs one row of availability, of its range"
        )
    present = {name for name, table in rows.items() if table.num_rows} - {AVAILABILITY.name}
    wrong = present - DETAIL_TABLES if message.details else present & DETAIL_TABLES
    if found[0]["place"] == GONE:
        wrong = present
    if wrong:
        raise RankmemError(Code.INVALID, f"the batch has rows of {min(wrong)}, which belong elsewhere")
