"""The summaries of groups, told in passes cut anywhere: what a question answers must not depend on them."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import SESSION, RankLog, clear, store_logs
from group_oracle import BY, group_after, logs, rows, summits
from repetitions import examples
from summary_passes import of_groups, summarise

pytestmark = pytest.mark.slow

MANY = examples(0.4)


def totals(connection: duckdb.DuckDBPyConnection, by: str) -> dict[Any, Any]:
    answer = rows(connection, "SELECT * FROM made_total($id, $by)", id=SESSION, by=by)
    names = ("allocated_bytes", "num_allocations", "largest_bytes")
    return {row["group_name"]: tuple(row[name] for name in names) for row in answer}


def totals_of(log: RankLog, by: str) -> dict[Any, Any]:
    """The same by adding up one block after another."""
    found: dict[Any, tuple[int, int, int]] = {}
    for block in log.allocations.values():
        name = group_after(log, block, 10**9, by)
        allocated, count, largest = found.get(name, (0, 0, 0))
        if not block["preexisting"]:
            allocated, count = allocated + block["size_bytes"], count + 1
        found[name] = (allocated, count, max(largest, block["size_bytes"]))
    return found


@MANY
@given(log=logs(), by=BY, places=st.lists(st.integers(-1, 30), max_size=4), remember=st.booleans())
def test_a_group_has_one_peak_wherever_the_summaries_were_cut(
    database: duckdb.DuckDBPyConnection, log: RankLog, by: str, places: list[int], remember: bool
) -> None:
    clear(database)
    store_logs(database, [log])
    if not log.events:
        return
    before = of_groups(database, by)
    assert {name: row[1:3] for name, row in before.items()} == summits(log, by)
    assert totals(database, by) == totals_of(log, by)
    summarise(database, log, sorted(set(places)), remember=remember)
    assert of_groups(database, by) == before
    assert totals(database, by) == totals_of(log, by)


@MANY
@given(log=logs(), by=BY, places=st.lists(st.integers(-1, 20), max_size=3))
def test_of_a_log_that_has_ended_the_summaries_alone_answer(
    database: duckdb.DuckDBPyConnection, log: RankLog, by: str, places: list[int]
) -> None:
    clear(database)
    store_logs(database, [log])
    if not log.events:
        return
    before = of_groups(database, by)
    summarise(database, log, [*sorted(set(places)), 1000], final=True)
    answer = "SELECT * FROM block_change($id, $by, only_recent := true)"
    assert rows(database, answer, id=SESSION, by=by) == []
    assert of_groups(database, by) == before
    assert totals(database, by) == totals_of(log, by)


@MANY
@given(log=logs(), by=BY, places=st.lists(st.integers(-1, 20), max_size=3))
def test_a_coarse_course_lies_on_the_curve_and_has_its_peak(
    database: duckdb.DuckDBPyConnection, log: RankLog, by: str, places: list[int]
) -> None:
    clear(database)
    store_logs(database, [log])
    summarise(database, log, sorted(set(places)))
    exact = rows(database, "SELECT * FROM curve_by_group($id, 0, $by)", id=SESSION, by=by)
    coarse = rows(database, "SELECT * FROM group_course($id, $by)", id=SESSION, by=by)
    curve = {(row["group_name"], row["seq"]): (row["bytes"], row["time_ns"]) for row in exact}
    highest: dict[Any, int] = {}
    for row in coarse:
        held, time_ns = curve[row["group_name"], row["seq"]]
        assert row["bytes"] == held
        assert row["time_ns"] == time_ns or row["seq"] < 0
        highest[row["group_name"]] = max(highest.get(row["group_name"], 0), held)
    assert highest == {name: max(h for (n, _), (h, _) in curve.items() if n == name) for name, _ in curve}


@pytest.mark.parametrize("remember", [True, False])
def test_a_block_that_turned_in_one_pass_is_in_its_new_group_in_the_next(
    database: duckdb.DuckDBPyConnection, remember: bool
) -> None:
    log = RankLog()
    log.alloc("block", 10, at=1, category="activation")
    log.means("block", "gradient", at=2)
    log.alloc("other", 7, at=3, category="gradient")
    log.free("block", at=4)
    log.alloc("third", 5, at=5, category="activation")
    store_logs(database, [log])
    before = of_groups(database, "category")
    assert {name: row[1] for name, row in before.items()} == {"activation": 10, "gradient": 17}
    summarise(database, log, [1, 2, 1000], final=True, remember=remember)
    assert of_groups(database, "category") == before
    assert totals(database, "category") == totals_of(log, "category")
    last = "SELECT group_name, arg_max(bytes, seq) AS bytes FROM group_course($id, 'category') GROUP BY ALL"
    assert {row["group_name"]: row["bytes"] for row in rows(database, last, id=SESSION)} == {
        "activation": 5,
        "gradient": 7,
    }
