"""A spool written record by record, or by others, and the rows that pairing makes from it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from rankmem_agent.spool.layout import Kind
from rankmem_agent.spool.meta import SpoolMeta
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.spool_reader.reader import Chunk
from rankmem_ship.spool_reader.segments import RECORD_DTYPE
from rankmem_ship.spool_reader.string_table import StringTable
from spool_bytes import records_of
from spool_synthetic import SyntheticSpool, clock_record, make_records, reader_of

BASE_NS = 1_700_000_000_000_000_000
META = SpoolMeta(
    spool_id="0TESTSESSION-0-0-1-1",
    session_id="0TESTSESSION",
    attempt=0,
    rank=0,
    pid=1,
    process_start_ticks=1,
    start=0,
    aggregator="",
    project_root="/project",
    monotonic_ns=0,
    realtime_ns=BASE_NS,
    session={},
    rank_row={"host_uid": "h"},
    host={"host_uid": "h"},
)


class Log:
    """A spool written record by record."""

    def __init__(self, folder: Path) -> None:
        self.spool = SyntheticSpool(path=folder / "s")
        self.spool.append(clock_record(self.spool))

    def add(self, kind: Kind, **fields: int) -> None:
        time_ns = fields.pop("time_ns", self.spool.monotonic_ns + self.spool.next_seq)
        self.spool.append(make_records(1, kind=kind, time_ns=time_ns, **fields))

    def rows(self, *, final: bool = True) -> dict[str, list[dict[str, Any]]]:
        reader = reader_of(self.spool.path)
        pairing = Pairing(reader.meta, reader.strings)
        while (part := reader.read(1000)) is not None:
            pairing.feed(part)
        return {table: batch.to_pylist() for table, batch in pairing.cut(final=final)}


def rows_of_spool(folder: Path, records_at_once: int = 1000) -> dict[str, list[dict[str, Any]]]:
    """The rows of a whole spool that has no meta.json."""
    found = [tuple(record.values()) for _, record in sorted(records_of(folder).items())]
    records = np.array(found, RECORD_DTYPE)
    strings = StringTable(folder / "strings")
    strings.poll()
    pairing = Pairing(META, strings)
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for begin in range(0, len(records), records_at_once):
        part = records[begin : begin + records_at_once]
        pairing.feed(Chunk(sequence_first=begin, records=part))
        for table, batch in pairing.cut(final=begin + len(part) == len(records)):
            rows[table] += batch.to_pylist()
    strings.close()
    return rows
