"""Rows of events that come after their summaries: which batches are taken, and each stretch once."""

from __future__ import annotations

import pytest

from rankmem_aggregator.ingest.batch import IncomingBatch, Spool, decode_batch
from rankmem_aggregator.ingest.details import StoredDetails
from rankmem_aggregator.ingest.sequence import Verdict
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.columns import rows_of

SPOOL = Spool(spool_id="s-0-0-1-1", session_id="S", attempt=0, rank=0)
CHANGE = {
    "session_id": "S", "attempt": 0, "rank": 0, "device": "cpu", "allocation_id": 1, "time_ns": 5, "seq": 2,
    "category": "input",
}  # fmt: skip
STEP = {"session_id": "S", "attempt": 0, "rank": 0, "step": 1}


def message(place: str | None, *, details: bool, first: int = 10, last: int = 19, **tables: object) -> Batch:
    rows = dict(tables)
    if place is not None:
        rows["availability"] = {
            "session_id": "S", "attempt": 0, "rank": 0, "sequence_first": 10, "sequence_last": 19,
            "place": place, "spool_id": SPOOL.spool_id,
        }  # fmt: skip
    return Batch(
        spool_id=SPOOL.spool_id,
        sequence_first=first,
        sequence_last=last,
        details=details,
        tables=[
            TableRows(table=name, arrow_ipc=encode_rows(rows_of(name, [row])))  # type: ignore[list-item]
            for name, row in rows.items()
        ],
    )


@pytest.mark.parametrize(
    "wrong",
    [
        message(None, details=True, category_change=CHANGE),
        message("host", details=True, category_change=CHANGE),
        message("here", details=True, step=STEP),
        message("gone", details=True, category_change=CHANGE),
        message("here", details=False, step=STEP),
        message("host", details=False, category_change=CHANGE),
        message("here", details=True, last=20, category_change=CHANGE),
    ],
    ids=[
        "no row",
        "a summary's",
        "of summaries",
        "gone with rows",
        "not later",
        "with events",
        "of another range",
    ],
)
def test_a_batch_that_is_neither_a_summary_nor_what_it_left_is_refused(wrong: Batch) -> None:
    with pytest.raises(RankmemError) as raised:
        decode_batch(wrong, SPOOL, takes_details=True)
    assert raised.value.code is Code.INVALID


@pytest.mark.parametrize("details", [False, True])
def test_an_aggregator_of_a_database_takes_none(details: bool) -> None:
    place = "here" if details else "host"
    with pytest.raises(RankmemError) as raised:
        decode_batch(message(place, details=details), SPOOL)
    assert raised.value.code is Code.UNSUPPORTED


def decoded(place: str, *, details: bool = True, **tables: object) -> IncomingBatch:
    return decode_batch(message(place, details=details, **tables), SPOOL, takes_details=True)


def test_a_stretch_is_stored_once_and_not_before_its_summary() -> None:
    stored = StoredDetails()
    here, gone = decoded("here", category_change=CHANGE), decoded("gone")
    stored.learn(SPOOL.spool_id, (), ())
    with pytest.raises(RankmemError, match="before their summary"):
        stored.judge(here, 9)
    stored.expect(decoded("host", details=False, step=STEP))
    assert stored.judge(gone, 9) is Verdict.STORE
    assert stored.judge(here, 9) is Verdict.STORE
    assert stored.judge(here, 9) is Verdict.KNOWN
    assert not stored.is_stored(here)
    stored.commit()
    assert stored.is_stored(here)
    stored.forget(SPOOL.spool_id)  # another aggregator's commit came first: it is looked up again
    assert not stored.knows(SPOOL.spool_id)
    stored.learn(SPOOL.spool_id, [(10, 19)], [(10, 19)])
    assert stored.judge(here, 19) is Verdict.KNOWN
    assert stored.is_stored(here)


@pytest.mark.parametrize("others", [[], [(10, 14), (15, 19)], [(10, 29)], [(0, 19)]])
def test_a_stretch_of_another_cut_than_the_stored_one_is_refused(others: list[tuple[int, int]]) -> None:
    stored = StoredDetails()
    stored.learn(SPOOL.spool_id, others, ())
    for batch in (decoded("here", category_change=CHANGE), decoded("gone")):
        with pytest.raises(RankmemError, match="of other ranges") as raised:
            stored.judge(batch, 29)
        assert raised.value.code is Code.NOT_FOUND
        with pytest.raises(RankmemError) as raised:  # which cut is stored is not settled yet
            stored.judge(batch, 18)
        assert raised.value.code is Code.CONFLICT
    stored.learn_summaries(SPOOL.spool_id, [(10, 19)])
    assert stored.judge(decoded("here", category_change=CHANGE), 29) is Verdict.STORE
