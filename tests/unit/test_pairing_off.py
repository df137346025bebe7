"""What is off from some record on: a gap to the process's end, and nothing that pretends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmem_agent.spool.layout import Action, DeviceType, Kind, Missing
from spool_log import Log

BLOCK = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    log.add(Kind.DEVICE, e=log.spool.string('{"name": "cpu"}'))
    log.add(Kind.EVENT, a=0x1000, b=BLOCK, action=Action.ALLOC)
    return log


def off(log: Log, missing: Missing, **fields: int) -> None:
    string = log.spool.string
    log.add(Kind.OFF, action=missing, e=string("why"), b=string("TypeError: odd"), **fields)


def test_an_agent_that_is_off_leaves_a_gap_to_the_end_and_no_block_alive(log: Log) -> None:
    off(log, Missing.EVENTS, d=1)
    log.add(Kind.END)
    rows = log.rows()
    (gap,) = rows["gap"]
    assert (gap["why"], gap["what"], gap["detail"], gap["to_end"]) == ("why", None, "TypeError: odd", True)
    (rank,) = rows["rank_info"]
    assert (rank["complete"], rank["events_lost"], rank["unexplained_bytes"]) == (False, None, None)
    (block,) = rows["allocation_record"]
    assert block["freed_ns"] == gap["noticed_ns"], "nobody knows what became of it"
    assert rows["memory_bucket"][-1]["requested_last_bytes"] == 0
    assert rank["end_reason"] == "exit", "its process ended when it ended"


def test_names_that_are_off_leave_the_bytes_complete(log: Log) -> None:
    off(log, Missing.NAMES, a=log.spool.string("modules"), d=1)
    log.add(Kind.EVENT, a=0x1000, action=Action.FREE_COMPLETED)
    log.add(Kind.END)
    rows = log.rows()
    (gap,) = rows["gap"]
    assert (gap["what"], gap["records"], gap["to_end"]) == ("modules", 0, True)
    (rank,) = rows["rank_info"]
    assert (rank["complete"], rank["events_lost"]) == (True, 0)


def test_a_device_that_is_not_recorded_ends_no_block_of_another(log: Log) -> None:
    off(log, Missing.DEVICE, device_type=int(DeviceType.CUDA), a=log.spool.string("cuda events"))
    log.add(Kind.END)
    rows = log.rows()
    assert rows["allocation_record"][0]["freed_ns"] is None
    assert rows["rank_info"][0]["complete"] is False


def test_what_blocks_mean_is_inferred_no_more_once_the_hooks_are_off(log: Log) -> None:
    call = {"call_id": 1, "thread": 1}

    def a_call_with_a_temporary(number: int) -> None:
        call["call_id"] = number
        log.add(Kind.CALL_BEGIN, action=1, a=1, **call)
        log.add(Kind.EVENT, a=0x2000, b=512, action=Action.ALLOC, **call)
        log.add(Kind.EVENT, a=0x2000, action=Action.FREE_COMPLETED, **call)
        log.add(Kind.CALL_END, a=1, **call)

    a_call_with_a_temporary(1)
    known = log.rows()["allocation_record"]
    off(log, Missing.NAMES, a=log.spool.string("steps"), d=1)
    a_call_with_a_temporary(2)
    unknown = log.rows()["allocation_record"]
    assert known[-1]["category"] == "temporary"
    assert unknown[-1]["category"] == "unknown"
