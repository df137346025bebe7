"""A statement without the conditions of absent parameters answers as the whole one does."""

from __future__ import annotations

import json
import re

import duckdb
import pytest

from block_logs import frame_rows, random_log
from constructed import SESSION, empty_database, store_logs, store_rows
from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.reading import statement
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import optional_of, page_names, page_text, page_texts

NAMES = [name for name in page_names() if optional_of(name)]
POINT = {"attempt": 0, "rank": 0, "device": "cuda:0", "offset_ns": 0, "seq": 60}
GIVEN: dict[str, Value] = {
    "session": SESSION, "attempt": 0, "rank": 0, "device": "cuda:0", "offset_ns": 0,
    "points": json.dumps([POINT]), "rank_first": 0, "rank_last": 0, "by": "category", "which": "touching",
    "kind": "wait", "first_seq": 0, "last_seq": 10**6, "seq_first": 0, "seq_last": 10**6,
    "from_ns": -(2**61), "until_ns": 2**62, "at_ns": 2**62, "end_ns": 2**62, "least_ns": 0, "least_steps": 0,
    "has_steps": False, "by_line": True, "sort": "size", "descending": True, "at_most": 1000,
    "with_category": True, "with_size": False,
}  # fmt: skip
"""Of the other parameters each is absent."""


def given_to(name: str) -> dict[str, Value]:
    """The parameters that the whole text of a statement names, and those without which it is shorter."""
    named = re.findall(r"\$(\w+)", re.sub(r"--.*", "", page_text(name)))
    return {each: GIVEN.get(each) for each in (*named, *optional_of(name))}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "side_held"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_condition_that_every_row_fulfils_may_be_left_out(name: str, seed: int) -> None:
    given = given_to(name)
    short, left = statement(name, given)
    assert short != page_text(name)
    assert left.keys() == {each for each in given if f"${each}" in re.sub(r"--.*", "", short)}
    whole = {each: given[each] for each in given if f"${each}" in re.sub(r"--.*", "", page_text(name))}
    with empty_database() as connection:
        log = random_log(seed)
        log.alloc("waits", 64, at=10**12, device="cuda:0")
        log.request_free("waits", at=2 * 10**12)
        log.free("waits", at=3 * 10**12)
        store_logs(connection, [log])
        store_rows(connection, "stack_frame", frame_rows())
        expected = connection.execute(page_text(name), whole).fetchall()
        assert expected
        assert sorted(map(repr, connection.execute(short, left).fetchall())) == sorted(map(repr, expected))


@pytest.mark.parametrize("by", ["category", "operator", "stream"])
def test_without_stacks_the_groups_of_a_side_are_the_same(by: str) -> None:
    given = {**given_to("side_held"), "by": by}
    with empty_database() as connection:
        store_logs(connection, [random_log(3)])
        store_rows(connection, "stack_frame", frame_rows())
        whole, short = (
            connection.execute(*statement("side_held", given | {"lines": lines})).fetchall()
            for lines in (True, None)
        )
        assert whole
        assert short == whole


@pytest.mark.parametrize("name", page_names())
def test_the_texts_of_the_page_are_all_known(name: str) -> None:
    optional = optional_of(name)
    assert {page_text(name), page_text(name, optional)} <= page_texts()
    assert (page_text(name) == page_text(name, optional)) == (not optional)


def test_every_text_as_sql_can_be_followed_by_another() -> None:
    """A panel of two questions shows both: none may end within a comment."""
    for text in page_texts():
        shown = as_sql(text, dict.fromkeys(re.findall(r"\$(\w+)", text)))
        assert len(duckdb.extract_statements(f"{shown};\n\nSELECT 1")) == 2, text
