"""Stacks' numbers: dense, one a hash, each stack's frames stored once, taken back by a rollback."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.ingest.stack_ids import STACK_COLUMNS, StackNumbers
from rankmem_protos.tables import TABLES

HASHES = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 5)), max_size=30)


def empty() -> StackNumbers:
    nothing = np.empty(0, np.int64)
    return StackNumbers(nothing, nothing, nothing)


def calls(hashes: list[int | None], forward: list[int | None] | None = None) -> dict[str, pa.Table]:
    columns = {"stack_id": hashes, "forward_stack_id": forward or [None] * len(hashes)}
    return {"operator_call": pa.table({n: pa.array(v, pa.int64()) for n, v in columns.items()})}


def frames(*stacks: tuple[int, int]) -> dict[str, pa.Table]:
    rows = [
        {"stack_id": value, "ordering": n, "file_path": "f.py", "line_number": 1, "function": "f"}
        for value, count in stacks
        for n in range(count)
    ]
    return {"stack_frame": pa.Table.from_pylist(rows, schema=TABLES["stack_frame"].arrow_schema())}


def numbers_of(
    replaced: dict[str, pa.Table], table: str = "operator_call", column: str = "stack_id"
) -> list[int | None]:
    result: list[int | None] = replaced[table].column(column).to_pylist()
    return result


@given(st.lists(st.tuples(HASHES, st.booleans()), max_size=8))
def test_numbers_equal_those_of_a_plain_dictionary(groups: list[tuple[list[int | None], bool]]) -> None:
    stacks = empty()
    known: dict[int, int] = {}
    for hashes, committed in groups:
        replaced = numbers_of(stacks.replace(calls(hashes)))
        tentative = dict(known)
        for value, number in zip(hashes, replaced, strict=True):
            assert (value is None) == (number is None)
            if value is not None and number is not None:
                assert tentative.setdefault(value, number) == number
        assert sorted(tentative.values()) == list(range(1, len(tentative) + 1))
        pending = stacks.pending()
        new = {value: number for value, number in tentative.items() if value not in known}
        assert (
            dict(zip(*(pending.column(n).to_pylist() for n in ("stack_hash", "stack_id")), strict=True))
            == new
        )
        if committed:
            stacks.commit()
            known = tentative
        else:
            stacks.rollback()


def test_frames_of_a_stack_are_stored_once_whoever_sends_them() -> None:
    stacks = empty()
    first = stacks.replace(frames((77, 3), (88, 2)))
    again = stacks.replace(frames((88, 2), (99, 1)))
    assert numbers_of(first, "stack_frame") == [1, 1, 1, 2, 2]
    assert numbers_of(again, "stack_frame") == [3]
    stacks.commit()
    assert numbers_of(stacks.replace(frames((77, 3))), "stack_frame") == []


def test_frames_that_were_rolled_back_are_stored_when_sent_again() -> None:
    stacks = empty()
    stacks.replace(frames((77, 2)))
    stacks.rollback()
    assert numbers_of(stacks.replace(frames((77, 2))), "stack_frame") == [1, 1]


def test_a_reopened_database_goes_on_where_it_was() -> None:
    stacks = StackNumbers(np.array([2, 1]), np.array([-5, 9]), np.array([1]))
    assert numbers_of(stacks.replace(calls([9, -5, 4]))) == [1, 2, 3]
    assert numbers_of(stacks.replace(frames((9, 1), (-5, 1))), "stack_frame") == [2]


def test_a_forward_stack_has_the_number_that_the_stack_has_elsewhere() -> None:
    stacks = empty()
    replaced = stacks.replace(calls([77, None, 88], [None, 77, 99]))
    first, none, second = numbers_of(replaced)
    assert none is None
    assert numbers_of(replaced, column="forward_stack_id")[:2] == [None, first]
    assert numbers_of(stacks.replace(frames((77, 1), (88, 1))), "stack_frame") == [first, second]
    (third,) = numbers_of(stacks.replace(frames((99, 2))), "stack_frame")[:1]
    assert numbers_of(replaced, column="forward_stack_id")[2] == third
    assert {first, second, third} == {1, 2, 3}


def test_every_column_that_names_a_stack_is_numbered() -> None:
    assert STACK_COLUMNS["allocation_record"] == ("stack_id", "forward_stack_id")
    assert STACK_COLUMNS["weight"] == ("stack_id",)
    assert STACK_COLUMNS["memory_event"] == ("stack_id",)
    assert STACK_COLUMNS["memory_bucket"] == ()
