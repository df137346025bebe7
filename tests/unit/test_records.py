"""Records by the names of their fields have the bytes that the format has always had."""

from __future__ import annotations

import numpy as np
import pytest

from rankmem_agent.spool.c_header import c_header
from rankmem_agent.spool.layout import COMMON_FIELDS, FIELDS, RECORD_FIELDS, Kind
from rankmem_agent.spool.records import packed, slots_of
from rankmem_ship.spool_reader.segments import RECORD_DTYPE, named

COMMON = {
    "time_ns": 0x0102030405060708, "call_id": 0x11, "thread": 0x22, "device_type": 1, "device_index": 2,
}  # fmt: skip
BYTES = [
    (
        Kind.EVENT,
        {"address": 0x31, "size_bytes": 0x32, "stream": 0x33, "pool": 0x34, "stack_id": 0x35, "action": 0x3},
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000035000000 0103010200000000",
    ),
    (
        Kind.CALL_BEGIN,
        {
            "phase": 0x31,
            "started_ns": 0x32,
            "module": 0x33,
            "step": 0x34,
            "node": 0x35,
            "operator_name": 0x36,
        },
        "0807060504030201 3200000000000000 3300000000000000 3400000000000000 "
        "3500000000000000 1100000000000000 2200000036000000 0231010200000000",
    ),
    (
        Kind.CALL_END,
        {
            "started_ns": 0x31,
            "sequence_first": 0x32,
            "sequence_last": 0x33,
            "with_grad": 0x34,
            "stack_id": 0x35,
            "is_read": 0x3,
        },
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000035000000 0303010200000000",
    ),
    (
        Kind.CALL_FORWARD,
        {"forward_thread": 0x31, "forward_sequence": 0x32, "action": 0x3},
        "0807060504030201 3100000000000000 3200000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000000000000 0403010200000000",
    ),
    (
        Kind.MARKER_BEGIN,
        {"marker_kind": 0x31, "marker_id": 0x32, "name": 0x33},
        "0807060504030201 3200000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000033000000 0531010200000000",
    ),
    (
        Kind.MARKER_END,
        {"marker_id": 0x31, "action": 0x3},
        "0807060504030201 3100000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000000000000 0603010200000000",
    ),
    (
        Kind.STEP,
        {"step": 0x31, "optimizer": 0x32, "action": 0x3},
        "0807060504030201 3100000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000032000000 0703010200000000",
    ),
    (
        Kind.CLOCK,
        {"realtime_ns": 0x31, "action": 0x3},
        "0807060504030201 3100000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000000000000 0803010200000000",
    ),
    (
        Kind.COUNTERS,
        {
            "allocated_bytes": 0x31,
            "active_bytes": 0x32,
            "reserved_bytes": 0x33,
            "requested_bytes": 0x34,
            "moves": 0x1,
            "action": 0x3,
        },
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000001000000 0903010200000000",
    ),
    (
        Kind.PEAKS,
        {
            "allocated_bytes": 0x31,
            "active_bytes": 0x32,
            "reserved_bytes": 0x33,
            "requested_bytes": 0x34,
            "action": 0x3,
        },
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000000000000 0a03010200000000",
    ),
    (
        Kind.SAMPLE,
        {
            "app_reserved_bytes": 0x31,
            "device_used_bytes": 0x32,
            "device_free_bytes": 0x33,
            "device_total_bytes": 0x34,
            "action": 0x3,
        },
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000000000000 0b03010200000000",
    ),
    (
        Kind.TAG,
        {
            "category": 0x31,
            "address": 0x32,
            "size_bytes": 0x33,
            "since_allocation": 0x34,
            "qualifier": 0x35,
            "name": 0x36,
        },
        "0807060504030201 3200000000000000 3300000000000000 3400000000000000 "
        "3500000000000000 1100000000000000 2200000036000000 0c31010200000000",
    ),
    (
        Kind.DEVICE,
        {"facts": 0x31, "action": 0x3},
        "0807060504030201 0000000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000031000000 0d03010200000000",
    ),
    (
        Kind.PREEXISTING,
        {"address": 0x31, "size_bytes": 0x32, "stream": 0x33, "pool": 0x34, "stack_id": 0x35, "action": 0x3},
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000035000000 0e03010200000000",
    ),
    (
        Kind.NOTE,
        {"facts": 0x31, "action": 0x3},
        "0807060504030201 0000000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000031000000 0f03010200000000",
    ),
    (
        Kind.END,
        {"num_dropped": 0x31, "action": 0x3},
        "0807060504030201 3100000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000000000000 1003010200000000",
    ),
    (
        Kind.LOST,
        {"num_events": 0x31, "why": 0x32, "action": 0x3},
        "0807060504030201 3100000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000032000000 1103010200000000",
    ),
    (
        Kind.WEIGHT,
        {"address": 0x31, "size_bytes": 0x32, "grad_size_bytes": 0x33, "facts": 0x34, "action": 0x3},
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "0000000000000000 1100000000000000 2200000034000000 1203010200000000",
    ),
    (
        Kind.MODULE,
        {"path": 0x31, "is_frozen": 0x32, "class_name": 0x33, "action": 0x3},
        "0807060504030201 3100000000000000 3200000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000033000000 1303010200000000",
    ),
    (
        Kind.OFF,
        {"missing": 0x31, "what": 0x32, "detail": 0x33, "stops_inference": 0x34, "why": 0x35},
        "0807060504030201 3200000000000000 3300000000000000 0000000000000000 "
        "3400000000000000 1100000000000000 2200000035000000 1431010200000000",
    ),
    (
        Kind.INPUT,
        {
            "step": 0x31,
            "size_bytes": 0x32,
            "module": 0x33,
            "num_left_out": 0x34,
            "facts": 0x35,
            "with_grad": 0x1,
        },
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000035000000 1501010200000000",
    ),
    (
        Kind.EVIDENCE,
        {"frames_key": 0x31, "modules_key": 0x32, "node_class": 0x33, "node_sequence": 0x34,
         "native_operator": 0x35},
        "0807060504030201 3100000000000000 3200000000000000 3300000000000000 "
        "3400000000000000 1100000000000000 2200000035000000 1600010200000000",
    ),
    (
        Kind.DETAIL,
        {"outcome": 0x31, "order": 0x32, "step": 0x33, "detail": 0x34},
        "0807060504030201 3200000000000000 3300000000000000 3400000000000000 "
        "0000000000000000 1100000000000000 2200000000000000 1731010200000000",
    ),
    (
        Kind.ROUNDING,
        {"allocated_bytes": 0x31, "active_bytes": 0x32},
        "0807060504030201 3100000000000000 3200000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000000000000 1800010200000000",
    ),
    (
        Kind.PART,
        {"course": 0x31, "step": 0x32, "position": 0x33, "like_step": 0x34, "nodes_of": 0x35},
        "0807060504030201 3200000000000000 3300000000000000 3400000000000000 "
        "3500000000000000 1100000000000000 2200000000000000 1931010200000000",
    ),
    (
        Kind.COMMUNICATOR,
        {"held_bytes": 0x31, "component": 0x32},
        "0807060504030201 3100000000000000 0000000000000000 0000000000000000 "
        "0000000000000000 1100000000000000 2200000032000000 1a00010200000000",
    ),
]  # fmt: skip
"""A record of each kind, without its mark: time_ns a b c, d call_id thread/e kind/action/device/mark, as the
positional writers of format version 2 packed those that it had."""


def test_every_kind_is_here_with_all_its_slots() -> None:
    assert [kind for kind, _, _ in BYTES] == list(Kind)
    for kind, fields, _ in BYTES:
        assert {FIELDS[kind][name].name for name in fields if name != "action"} == {
            slot.name for name, slot in FIELDS[kind].items() if name not in ("block_bytes", "nodes_made")
        }  # these stand where an event has its call


@pytest.mark.parametrize(("kind", "fields", "old"), BYTES, ids=lambda value: getattr(value, "name", ""))
def test_a_record_packed_by_names_has_the_old_bytes_and_is_read_by_the_same_names(
    kind: Kind, fields: dict[str, int], old: str
) -> None:
    record = packed(kind, **COMMON, **fields)
    assert record == bytes.fromhex(old)
    (read,) = named(np.frombuffer(record, RECORD_DTYPE), kind)
    assert {name: int(read[name]) for name in (*COMMON, *fields)} == COMMON | fields
    assert read["kind"] == kind


def test_names_that_share_a_slot_are_alternatives() -> None:
    assert packed(Kind.EVENT, device_free_bytes=5) == packed(Kind.EVENT, pool=5)
    assert packed(Kind.SAMPLE, pinned_reserved_bytes=5) == packed(Kind.SAMPLE, app_reserved_bytes=5)
    assert packed(Kind.PREEXISTING, block_bytes=5) == packed(Kind.PREEXISTING, call_id=5)
    assert packed(Kind.EVIDENCE, nodes_made=5) == packed(Kind.EVIDENCE, call_id=5)
    assert packed(Kind.SAMPLE, pinned_active_bytes=5) == packed(Kind.SAMPLE, device_used_bytes=5)


def test_a_field_that_the_kind_has_not_is_refused() -> None:
    with pytest.raises(KeyError, match="marker_id"):
        slots_of(Kind.EVENT, {"marker_id": 1})


def test_every_name_stands_for_a_slot_of_the_record_and_none_for_two() -> None:
    slots = {field.name for field in RECORD_FIELDS}
    for fields in FIELDS.values():
        assert {slot.name for slot in fields.values()} <= {"action", "a", "b", "c", "d", "e", "call_id"}
        assert not fields.keys() & (slots | COMMON_FIELDS)


def test_the_header_of_the_tap_names_every_field_of_every_kind() -> None:
    header = c_header()
    for kind, fields in FIELDS.items():
        begin = header.index("struct Rkm" + kind.name.title().replace("_", "") + " : RkmRecord {")
        struct = header[begin : header.index("};", begin)]
        assert f"kind = RKM_KIND_{kind.name};" in struct
        for name, slot in fields.items():
            assert f"& {name}() noexcept {{ return {slot.name}; }}" in struct
