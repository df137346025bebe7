"""Foreign logs whose events have no address: bytes that come and go, counted and never made a block."""

from __future__ import annotations

from typing import Any

from rankmem_agent.spool.layout import NO_PHASE, NO_SEQUENCE, UNKNOWN, Action, DeviceType, Kind
from rankmem_imports.recording import Identity
from rankmem_imports.replay import Replay
from rankmem_ship.pairing.pairing import table_of

S = 1_000_000_000


def rows_of(replay: Replay, table: str) -> list[dict[str, Any]]:
    found = table_of(replay.part(final=True).rows, table)
    return [] if found is None else found.to_pylist()


def event(replay: Replay, action: Action, size_bytes: int, address: int = UNKNOWN, call_id: int = 0) -> None:
    replay.event(
        action,
        time_ns=S + replay.next_seq,
        device_type=DeviceType.HIP,
        device_index=1,
        address=address,
        size_bytes=size_bytes,
        call_id=call_id,
    )


def filled() -> Replay:
    """100 bytes older than the log; 10, 50 at an address and 4 allocated; 10 and the 50 freed again."""
    replay = Replay(Identity("S", 0, 0))
    replay.record(
        Kind.PREEXISTING,
        time_ns=S,
        action=Action.ALLOC,
        device_type=DeviceType.HIP,
        device_index=1,
        address=UNKNOWN,
        size_bytes=100,
    )
    name = replay.strings.intern("aten::mm")
    replay.record(
        Kind.CALL_BEGIN, time_ns=S + 1, started_ns=S + 1, call_id=7, phase=NO_PHASE, operator_name=name
    )
    event(replay, Action.ALLOC, 10, call_id=7)
    event(replay, Action.ALLOC, 50, address=4096, call_id=7)
    event(replay, Action.FREE_COMPLETED, 10, call_id=7)
    ends = {"sequence_first": NO_SEQUENCE, "sequence_last": NO_SEQUENCE}
    replay.record(Kind.CALL_END, time_ns=S + 5, started_ns=S + 1, call_id=7, **ends)
    event(replay, Action.FREE_COMPLETED, 50, address=4096)
    event(replay, Action.ALLOC, 4)
    return replay


def test_bytes_without_an_address_count_and_have_none() -> None:
    rows = rows_of(filled(), "memory_event")
    assert [row["requested_bytes"] for row in rows] == [110, 160, 150, 100, 104]
    assert [row["address"] for row in rows] == [None, 4096, None, 4096, None]
    assert [row["size_bytes"] for row in rows] == [10, 50, 10, 50, 4]
    assert {row["device"] for row in rows} == {"hip:1"}


def test_they_make_no_block() -> None:
    [block] = rows_of(filled(), "allocation_record")
    assert (block["address"], block["size_bytes"], block["operator"]) == (4096, 50, "aten::mm")


def test_their_call_has_allocated_and_freed_them() -> None:
    [call] = rows_of(filled(), "operator_call")
    assert (call["allocated_bytes"], call["freed_bytes"], call["allocations"]) == (60, 10, 2)


def test_a_peak_counts_them() -> None:
    [bucket] = rows_of(filled(), "memory_bucket")
    assert (bucket["requested_peak_bytes"], bucket["requested_last_bytes"]) == (160, 104)
