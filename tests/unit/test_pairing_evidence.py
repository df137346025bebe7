"""What says where blocks are made and what they are like changes no row; older logs have none of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rankmem_agent.spool.layout import NO_SEQUENCE, UNKNOWN, Action, Course, Kind, segment_name
from rankmem_ship.pairing.pairing import Pairing, table_of
from rankmem_ship.spool_reader.reader import Chunk
from rankmem_ship.spool_reader.segments import Array, named
from spool_synthetic import SyntheticSpool, reader_of, training_records

TABLES = ("memory_event", "allocation_record", "operator_call", "step_bucket")


def with_evidence(records: Array) -> Array:
    """With an EVIDENCE record behind each ALLOC, and a PART record behind that."""
    allocs = (records["kind"] == Kind.EVENT) & (records["action"] == Action.ALLOC)
    counts = 1 + 2 * allocs
    both = np.repeat(records, counts)
    last = np.cumsum(counts)[allocs] - 1
    behind = last - 1
    for name in ("a", "b", "c", "d", "e", "action", "device_type", "device_index", "call_id"):
        both[name][behind] = both[name][last] = 0
    both["kind"][behind] = Kind.EVIDENCE
    both["kind"][last] = Kind.PART
    both["action"][last] = Course.DIFFERS
    named(both, Kind.PART)["like_step"][last] = UNKNOWN
    evidence = named(both, Kind.EVIDENCE)
    evidence["frames_key"][behind] = evidence["modules_key"][behind] = NO_SEQUENCE - 1
    evidence["node_class"][behind] = evidence["node_sequence"][behind] = NO_SEQUENCE
    evidence["nodes_made"][behind] = np.arange(len(behind))
    return both


def paired(spool: SyntheticSpool) -> dict[str, pa.Table]:
    """The rows but for positions in the log and times: the two are not made at once."""
    reader = reader_of(spool.path)
    pairing = Pairing(reader.meta, reader.strings)
    while (part := reader.read(1 << 20)) is not None:
        assert isinstance(part, Chunk)
        pairing.feed(part)
    rows = pairing.cut(final=True)
    found = {name: table_of(rows, name) for name in TABLES}
    return {
        name: table.drop_columns([c for c in table.column_names if c == "allocation_id" or _is_place(c)])
        for name, table in found.items()
        if table is not None
    }


def _is_place(column: str) -> bool:
    return "seq" in column or column.endswith("_ns")


def test_the_rows_of_a_log_are_the_same_with_evidence_and_without(tmp_path: Path) -> None:
    plain, shown = SyntheticSpool(path=tmp_path / "plain"), SyntheticSpool(path=tmp_path / "shown")
    for spool in (plain, shown):
        records = training_records(spool, 500)
        spool.append(records if spool is plain else with_evidence(records))
        spool.end()
    rows = paired(plain)
    assert set(rows) >= {"memory_event", "allocation_record", "operator_call"}
    again = paired(shown)
    assert again.keys() == rows.keys()
    for name, table in rows.items():
        assert again[name].equals(table), name


@pytest.mark.parametrize("version", [1, 2])
def test_a_log_of_an_older_version_is_read_as_before(tmp_path: Path, version: int) -> None:
    spool = SyntheticSpool(path=tmp_path / "s")
    records = training_records(spool, 50)
    spool.append(records)
    spool.end()
    for name in ("control", "strings", segment_name(0)):
        with (spool.path / name).open("r+b") as file:
            file.seek(8)
            file.write(version.to_bytes(4, "little"))
    meta = spool.path / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"version": version}))
    part = reader_of(spool.path).read(1 << 20)
    assert isinstance(part, Chunk)
    read = part.records[: len(records)].copy()  # END follows
    read["mark"] = 0
    assert read.tobytes() == records.tobytes()
