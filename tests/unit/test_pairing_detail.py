"""A log whose detail changes: bytes go on, and nothing is known of a stretch that nobody observed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool.layout import Action, Detail, DeviceType, Kind, Outcome, Phase
from rankmem_ship.checkpoint import load_checkpoint, save_checkpoint
from rankmem_ship.log_slices import LogSlices
from rankmem_ship.pairing.pairing import Pairing, table_of
from rankmem_ship.pairing.state import Known
from spool_log import Log
from spool_synthetic import reader_of

BLOCK = 1 << 20
CUDA = {"device_type": int(DeviceType.CUDA)}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """An optimizer's call, a summary stretch of one step, and a call of forward; a block in each."""
    log = Log(tmp_path)
    log.add(Kind.DEVICE, e=log.spool.string('{"name": "cuda:0"}'), **CUDA)
    call(log, 1, Phase.OPTIMIZER, address=0x1000)
    log.add(Kind.COUNTERS, a=BLOCK, b=BLOCK, c=BLOCK, d=BLOCK, **CUDA)
    log.add(Kind.STEP, a=0)
    other = {"call_id": 3, "thread": 2}  # of a thread that is in a call meanwhile
    log.add(Kind.CALL_BEGIN, action=Phase.FORWARD, a=1, c=1, e=log.spool.string("aten::add"), **other)
    detail(log, Outcome.APPLIED, order=7, step=1, detail=Detail.EVENTS)
    log.add(Kind.EVENT, a=0x2000, b=BLOCK, action=Action.ALLOC, thread=1, **CUDA)
    log.add(Kind.EVENT, a=0x6000, b=BLOCK, action=Action.ALLOC, **other, **CUDA)
    log.add(Kind.EVENT, a=0x6000, action=Action.FREE_COMPLETED, **other, **CUDA)
    log.add(Kind.CALL_END, a=1, b=2**64 - 1, c=2**64 - 1, d=1, **other)
    log.add(Kind.STEP, a=1)
    log.add(Kind.EVENT, a=0x3000, b=BLOCK, action=Action.ALLOC, thread=1, **CUDA)
    log.add(Kind.EVENT, a=0x2000, action=Action.FREE_COMPLETED, thread=1, **CUDA)
    log.add(Kind.STEP, a=2)
    detail(log, Outcome.OVER, order=7, step=3, detail=Detail.FULL)
    detail(log, Outcome.APPLIED, order=8, step=3, detail=Detail.FULL)
    log.add(Kind.EVENT, a=0x4000, b=BLOCK, action=Action.ALLOC, thread=1, **CUDA)
    call(log, 2, Phase.FORWARD, address=0x5000)
    call(log, 4, Phase.FORWARD, frees=0x5000)
    log.add(Kind.END)
    return log


def call(log: Log, call_id: int, phase: Phase, *, address: int = 0, frees: int = 0) -> None:
    of = {"call_id": call_id, "thread": 1}
    log.add(Kind.CALL_BEGIN, action=phase, a=1, c=call_id, e=log.spool.string("aten::mul"), **of)
    if address:
        log.add(Kind.EVENT, a=address, b=BLOCK, action=Action.ALLOC, **of, **CUDA)
    if frees:
        log.add(Kind.EVENT, a=frees, action=Action.FREE_COMPLETED, **of, **CUDA)
    log.add(Kind.CALL_END, a=1, b=2**64 - 1, c=2**64 - 1, d=1, **of)


def detail(log: Log, outcome: Outcome, *, order: int, step: int, detail: Detail) -> None:
    log.add(Kind.DETAIL, action=outcome, a=order, b=step, c=detail, thread=1)


def paired(log: Log, max_records: int, folder: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """The rows of the whole log, in slices of so many records; restarted from a checkpoint after each."""
    reader = reader_of(log.spool.path)
    slices = LogSlices(reader)
    pairing = Pairing(reader.meta, reader.strings)
    rows: dict[str, list[dict[str, Any]]] = {}
    final = False
    while not final:
        piece = slices.next(max_records, allow_short=True)
        assert piece is not None
        for part in piece.parts:
            pairing.feed(part)
        final = piece.final
        for table, batch in pairing.cut(final=final):
            rows.setdefault(table, []).extend(batch.to_pylist())
        if folder is not None:
            save_checkpoint(folder, pairing.state)
            pairing = Pairing(reader.meta, reader.strings, load_checkpoint(folder))
    return rows


def test_bytes_go_on_and_steps_are_known(log: Log) -> None:
    rows = paired(log, 1000)
    assert [row["requested_bytes"] for row in rows["memory_event"]] == [
        n * BLOCK for n in (1, 2, 3, 2, 3, 2, 3, 4, 3)
    ]
    steps = {row["address"]: row["step"] for row in rows["allocation_record"]}
    assert (steps[0x2000], steps[0x3000]) == (1, 2)


def test_no_phase_and_no_figure_of_the_allocator_is_carried_over(log: Log) -> None:
    rows = paired(log, 1000)
    phases = {row["address"]: row["phase"] for row in rows["allocation_record"]}
    assert phases.pop(0x6000) == "forward", "its call began before"
    assert phases == {0x1000: "optimizer", 0x2000: None, 0x3000: None, 0x4000: None, 0x5000: "forward"}
    figures = [row["allocated_bytes"] for row in rows["memory_event"]]
    assert figures[1:6] == [None] * 5, "those of the last call in full detail are old"


def test_a_block_of_the_stretch_has_no_category_but_by_a_tag(log: Log) -> None:
    rows = paired(log, 1000)
    categories = {row["address"]: row["category"] for row in rows["allocation_record"]}
    assert {categories[address] for address in (0x2000, 0x3000, 0x6000)} == {"unknown"}
    changed = {row["allocation_id"] for row in rows.get("category_change", [])}
    assert not changed & {row["allocation_id"] for row in rows["allocation_record"] if not row["call_id"]}


def test_what_follows_the_stretch_may_depend_on_what_nobody_saw(log: Log) -> None:
    rows = paired(log, 1000)
    (after,) = (row for row in rows["allocation_record"] if row["address"] == 0x5000)
    assert after["category"] == "unknown", "a call without a node may take what was computed from parameters"


@pytest.mark.parametrize("max_records", [1, 2, 5])
def test_the_rows_do_not_depend_on_where_slices_end(log: Log, max_records: int, tmp_path: Path) -> None:
    def of(rows: dict[str, list[dict[str, Any]]], table: str) -> list[dict[str, Any]]:
        return sorted(rows[table], key=lambda row: row.get("seq") or row["allocation_id"])

    whole, parts = paired(log, 1000), paired(log, max_records, tmp_path)
    for table in ("memory_event", "control_change"):
        assert of(parts, table) == of(whole, table)
    known = ("allocation_id", "phase", "step", "operator", "attribution")
    assert [[row[name] for name in known] for row in of(parts, "allocation_record")] == [
        [row[name] for name in known] for row in of(whole, "allocation_record")
    ]


def test_each_change_is_a_row(log: Log) -> None:
    names = ("order_id", "outcome", "detail", "step")
    assert [tuple(row[name] for name in names) for row in paired(log, 1000)["control_change"]] == [
        (7, "applied", "summary", 1),
        (7, "over", "full", 3),
        (8, "applied", "full", 3),
    ]


def test_a_call_that_ends_after_the_change_says_nothing_of_what_follows(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(Kind.DEVICE, e=log.spool.string('{"name": "cuda:0"}'), **CUDA)
    log.add(Kind.STEP, a=0)
    detail(log, Outcome.APPLIED, order=7, step=1, detail=Detail.EVENTS)
    call(log, 1, Phase.FORWARD, address=0x1000)
    log.add(Kind.COUNTERS, a=BLOCK, b=BLOCK, c=BLOCK, d=BLOCK, **CUDA)
    log.add(Kind.EVENT, a=0x2000, b=BLOCK, action=Action.ALLOC, thread=1, **CUDA)
    log.add(Kind.STEP, a=1)
    log.add(Kind.EVENT, a=0x3000, b=BLOCK, action=Action.ALLOC, thread=1, **CUDA)
    log.add(Kind.END)
    for max_records in (1000, 1):
        rows = paired(log, max_records, tmp_path)
        phases = {row["address"]: row["phase"] for row in rows["allocation_record"]}
        assert phases == {0x1000: "forward", 0x2000: None, 0x3000: None}
        assert [row["allocated_bytes"] for row in rows["memory_event"]] == [None] * 3


def attributions(rows: list[dict[str, Any]]) -> dict[int, str | None]:
    return {row["address"]: row["attribution"] for row in rows}


def test_a_block_is_known_by_what_was_observed_as_it_was_made(log: Log) -> None:
    rows = paired(log, 1000)["allocation_record"]
    assert attributions(rows) == {
        0x1000: "observed",
        0x2000: "none",
        0x3000: "none",
        0x4000: "observed",  # outside of calls, in full detail
        0x5000: "observed",
        0x6000: "evidence",
    }
    assert {row["like_id"] for row in rows} == {None}


@pytest.mark.parametrize("kind", [Kind.CALL_BEGIN, Kind.PREEXISTING])
def test_nothing_is_claimed_of_a_lost_call_or_an_older_block(tmp_path: Path, kind: Kind) -> None:
    log = Log(tmp_path)
    log.add(Kind.DEVICE, e=log.spool.string('{"name": "cuda:0"}'), **CUDA)
    if kind == Kind.PREEXISTING:
        log.add(kind, action=Action.ALLOC, a=0x1000, b=BLOCK, **CUDA)
    else:
        log.add(Kind.EVENT, a=0x1000, b=BLOCK, action=Action.ALLOC, call_id=9, thread=1, **CUDA)
    expected = {Kind.CALL_BEGIN: "none", Kind.PREEXISTING: None}[kind]
    assert attributions(log.rows()["allocation_record"]) == {0x1000: expected}


def pairing_of(log: Log, **meta: Any) -> Pairing:
    """It has taken in the whole log."""
    reader = reader_of(log.spool.path)
    pairing = Pairing(dataclasses.replace(reader.meta, **meta), reader.strings)
    while (part := reader.read(1000)) is not None:
        pairing.feed(part)
    return pairing


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"infers": False}, None),
        ({"rank_row": {"host_uid": "h", "not_recorded": "operators,stacks,modules"}}, "none"),
        ({"rank_row": {"host_uid": "h", "not_recorded": "stacks"}}, "observed"),
    ],
)
def test_it_is_unsaid_in_a_foreign_recording_and_none_without_operators(
    tmp_path: Path, meta: dict[str, Any], expected: str | None
) -> None:
    log = Log(tmp_path)
    log.add(Kind.EVENT, a=0x1000, b=BLOCK, action=Action.ALLOC, thread=1, **CUDA)
    blocks = table_of(pairing_of(log, **meta).cut(final=True), "allocation_record")
    assert blocks is not None
    assert attributions(blocks.to_pylist()) == {0x1000: expected}


@pytest.mark.parametrize("known", [Known.TEMPLATE, Known.TEMPLATE_PREFIX])
def test_the_block_of_an_earlier_step_stays_in_the_state_and_goes_out(
    log: Log, known: Known, tmp_path: Path
) -> None:
    pairing = pairing_of(log)
    pairing.cut()
    live = pairing.state.live.copy()
    live["by"], live["like"] = known, 7
    save_checkpoint(tmp_path, dataclasses.replace(pairing.state, live=live))
    reader = reader_of(log.spool.path)
    again = Pairing(reader.meta, reader.strings, load_checkpoint(tmp_path))
    again.forget_sent()
    blocks = table_of(again.cut(final=True), "allocation_record")
    assert blocks is not None
    assert {(row["attribution"], row["like_id"]) for row in blocks.to_pylist()} == {(known.name.lower(), 7)}


COUNTS = ("template_blocks", "prefix_blocks", "evidence_blocks", "steady_misses", "audit_differences")


def test_a_rank_without_steady_steps_has_no_counts_of_them(log: Log) -> None:
    (rank,) = paired(log, 1000)["rank_info"][-1:]
    assert [rank[name] for name in COUNTS] == [None] * 5, "its block of evidence is of a summary"


def test_a_rank_with_steady_steps_has_counts_from_the_first_on(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(Kind.STEP, a=3)
    detail(log, Outcome.AUTO, order=0, step=4, detail=Detail.STEADY)
    (rank,) = paired(log, 1000)["rank_info"][-1:]
    assert [rank[name] for name in COUNTS] == [0] * 5


@pytest.mark.parametrize(("is_missed", "category"), [(False, "autograd_detail"), (True, "unknown")])
def test_a_block_that_died_in_a_node_that_nobody_saw_begin_may_be_a_temporary(
    tmp_path: Path, is_missed: bool, category: str
) -> None:
    log = Log(tmp_path)
    log.add(Kind.DEVICE, e=log.spool.string('{"name": "cuda:0"}'), **CUDA)
    log.add(Kind.STEP, a=3)
    if is_missed:
        detail(log, Outcome.AUTO, order=0, step=4, detail=Detail.STEADY)
        detail(log, Outcome.MISSED, order=0, step=4, detail=Detail.FULL)
    call(log, 1, Phase.BACKWARD, address=0x1000)
    call(log, 2, Phase.BACKWARD, frees=0x1000)
    log.add(Kind.STEP, a=4)
    log.add(Kind.END)
    (block,) = paired(log, 1000)["allocation_record"]
    assert block["category"] == category


def test_a_miss_is_counted_and_has_a_row(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(Kind.STEP, a=3)
    detail(log, Outcome.AUTO, order=0, step=4, detail=Detail.STEADY)
    detail(log, Outcome.MISSED, order=0, step=9, detail=Detail.FULL)
    call(log, 1, Phase.FORWARD, address=0x1000)
    log.add(Kind.STEP, a=9)
    log.add(Kind.END)
    rows = paired(log, 1000)
    assert [rows["rank_info"][-1][name] for name in COUNTS] == [0, 0, 1, 1, 0]
    assert [tuple(row[name] for name in ("outcome", "detail", "step")) for row in rows["control_change"]] == [
        ("auto", "steady", 4),
        ("missed", "full", 9),
    ]
