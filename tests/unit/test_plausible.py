"""A committed record that no writer wrote is a hole with a reason; its neighbours are delivered."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmem_agent.spool.layout import UNKNOWN, Action, Detail, Kind
from rankmem_ship.spool_reader.plausible import implausible
from rankmem_ship.spool_reader.reader import Chunk, Gap
from spool_synthetic import SyntheticSpool, make_records, reader_of, training_records


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 0},
        {"kind": 200},
        {"kind": Kind.EVENT, "action": 9},
        {"kind": Kind.EVENT, "device_type": 50},
        {"kind": Kind.EVENT, "b": UNKNOWN},
        {"kind": Kind.EVENT, "time_ns": 2**63},
        {"kind": Kind.CALL_BEGIN, "action": 4},
        {"kind": Kind.CALL_BEGIN, "e": 2**32 - 1},
        {"kind": Kind.CALL_BEGIN, "call_id": 2**64 - 1},
        {"kind": Kind.MARKER_BEGIN, "action": 5},
        {"kind": Kind.CLOCK, "a": 2**63},
        {"kind": Kind.COUNTERS, "a": 2**47},
        {"kind": Kind.DETAIL, "c": Detail.AUTO},
        {"kind": Kind.DETAIL, "c": 34},
    ],
)
def test_a_record_that_cannot_be_is_a_corrupt_hole_between_what_can(
    tmp_path: Path, fields: dict[str, int]
) -> None:
    spool = SyntheticSpool(path=tmp_path / "spool")
    records = training_records(spool, 20)
    for name, value in {"action": 0, "device_type": 0, **fields}.items():
        records[name][50:52] = value
    spool.append(records)
    spool.end()
    reader = reader_of(spool.path)
    parts = [reader.read(1000) for _ in range(3)]
    assert isinstance(parts[1], Gap)
    assert (parts[1].sequence_first, parts[1].sequence_last, parts[1].why) == (50, 51, "corrupt")
    assert isinstance(parts[0], Chunk)
    assert isinstance(parts[2], Chunk)
    assert (parts[0].sequence_last, parts[2].sequence_first) == (49, 52)


def test_what_is_not_known_is_no_damage() -> None:
    rows = [
        make_records(1, kind=Kind.SAMPLE, a=1, b=UNKNOWN, c=UNKNOWN, d=UNKNOWN),
        make_records(1, kind=Kind.COUNTERS, a=UNKNOWN, b=2**46),
        make_records(1, kind=Kind.CALL_END, b=UNKNOWN, c=UNKNOWN),
        make_records(1, kind=Kind.LOST, a=UNKNOWN),
        make_records(1, kind=Kind.PREEXISTING, action=Action.FREE_REQUESTED, a=0x1000, b=512),
        make_records(1, kind=Kind.EVENT, a=UNKNOWN, b=2**46, c=UNKNOWN, d=UNKNOWN),
        make_records(1, kind=Kind.CALL_BEGIN, action=255),
    ]
    assert not any(implausible(row).any() for row in rows)
